// gVisor's netstack over a TUN interface, as tunnels use it: with the kernel's offloads (a virtio
// header before each packet) and without RACK. It accepts connections, and moves bytes in the
// direction that their first byte names; see `benches/tun.rs`.
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const vnet = 10 // Bytes of a virtio header.

func must(err any) {
	if err != nil && fmt.Sprint(err) != "<nil>" {
		panic(err)
	}
}

func ioctl(fd int, request, argument uintptr) {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, argument); e != 0 {
		panic(e)
	}
}

func openTun(name string) int {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	must(err)
	var ifr [40]byte
	copy(ifr[:], name)
	*(*uint16)(unsafe.Pointer(&ifr[16])) = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	ioctl(fd, unix.TUNSETIFF, uintptr(unsafe.Pointer(&ifr[0])))
	return fd
}

// gVisor has no TUN with offloads: fdbased uses virtio headers on sockets only.
type endpoint struct {
	*channel.Endpoint
	fd int
}

func offloading(name string) stack.LinkEndpoint {
	e := &endpoint{channel.New(0, 1500, ""), openTun(name)}
	ioctl(e.fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4)
	e.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	e.SupportedGSOKind = stack.HostGSOSupported
	go e.receive()
	return e
}

func (*endpoint) GSOMaxSize() uint32 { return 65535 }

func (e *endpoint) receive() {
	for {
		view := buffer.NewViewSize(vnet + 65535)
		n, err := unix.Read(e.fd, view.AsSlice())
		if err == unix.EINTR {
			continue
		}
		must(err)
		view.CapLength(n)
		view.TrimFront(vnet)
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(view)})
		pkt.RXChecksumValidated = true
		e.InjectInbound(header.IPv4ProtocolNumber, pkt)
		pkt.DecRef()
	}
}

func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for at, pkt := range pkts.AsSlice() {
		var head [vnet]byte
		gso := pkt.GSOOptions
		if gso.Type != stack.GSONone && gso.NeedsCsum {
			head[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
			binary.NativeEndian.PutUint16(head[6:], gso.L3HdrLen)
			binary.NativeEndian.PutUint16(head[8:], gso.CsumOffset)
			if pkt.Data().Size() > int(gso.MSS) {
				head[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
				headers := len(pkt.NetworkHeader().Slice()) + len(pkt.TransportHeader().Slice())
				binary.NativeEndian.PutUint16(head[2:], uint16(headers))
				binary.NativeEndian.PutUint16(head[4:], gso.MSS)
			}
		}
		if _, err := unix.Writev(e.fd, append([][]byte{head[:]}, pkt.AsSlices()...)); err != nil {
			return at, &tcpip.ErrNoBufferSpace{}
		}
	}
	return pkts.Len(), nil
}

func main() {
	// Fewer collections: its packets are garbage.
	debug.SetGCPercent(400)
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	// As Tailscale and sing-tun: with RACK it sends a quarter of this.
	rack := tcpip.TCPRecovery(0)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &rack)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 4 << 20, Max: 8 << 20}
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &rcv)
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 4 << 20, Max: 8 << 20}
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &snd)
	if e := s.CreateNIC(1, offloading(os.Args[1])); e != nil {
		panic(e)
	}
	addr := tcpip.AddrFrom4Slice(net.ParseIP(os.Args[2]).To4())
	if e := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: addr.WithPrefix()}, stack.AddressProperties{}); e != nil {
		panic(e)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	l, e2 := gonet.ListenTCP(s, tcpip.FullAddress{NIC: 1, Addr: addr, Port: 5001}, ipv4.ProtocolNumber)
	must(e2)
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		must(err)
		go func() {
			defer c.Close()
			b := make([]byte, 128<<10)
			var way [1]byte
			c.Read(way[:])
			for {
				var err error
				if way[0] == 'r' {
					_, err = c.Read(b)
				} else {
					_, err = c.Write(b)
				}
				if err != nil {
					return
				}
			}
		}()
	}
}
