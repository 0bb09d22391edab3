// gVisor's netstack over a TUN interface: accepts connections, and moves bytes in the direction that
// their first byte names; see `benches/tun.rs`.
package main

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

func must(err any) {
	if err != nil && fmt.Sprint(err) != "<nil>" {
		panic(err)
	}
}

func openTun(name string) int {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	must(err)
	var ifr [40]byte
	copy(ifr[:], name)
	*(*uint16)(unsafe.Pointer(&ifr[16])) = unix.IFF_TUN | unix.IFF_NO_PI
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&ifr[0]))); e != 0 {
		panic(e)
	}
	must(unix.SetNonblock(fd, true))
	return fd
}

func main() {
	ep, err := fdbased.New(&fdbased.Options{FDs: []int{openTun(os.Args[1])}, MTU: 1500})
	must(err)
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 4 << 20, Max: 8 << 20}
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &rcv)
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 4 << 20, Max: 8 << 20}
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &snd)
	if e := s.CreateNIC(1, ep); e != nil {
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
