// Reads a TAP and only counts: no other reader of that TAP can be faster. A child of this process
// is the sender, so that the kernel makes frames without waiting for anybody.
//
// count_frames INTERFACE ADDRESS SECONDS large|small
//
// Prints the payload bytes that were read, and the seconds. `large`: a frame carries up to 44
// datagrams, as the kernel's segmentation offload for UDP makes them; `small`: one.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DATAGRAM 1448
#define DATAGRAMS 44
// USO4 and USO6.
#define USO 0x60
// Of a frame with IPv4.
#define HEADERS (10 + 14 + 20 + 8)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void send_all(const char *address, int large) {
  static char bytes[DATAGRAM * DATAGRAMS];
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(9)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
  int is_v4 = inet_pton(AF_INET, address, &v4.sin_addr), size = DATAGRAM;
  int out = socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM, 0);
  struct sockaddr *to = is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
  inet_pton(AF_INET6, address, &v6.sin6_addr);
  if (out < 0 || connect(out, to, is_v4 ? sizeof v4 : sizeof v6)) fail("socket");
  if (large && setsockopt(out, 17, 103, &size, sizeof size)) fail("UDP_SEGMENT");
  for (;;) send(out, bytes, large ? sizeof bytes : DATAGRAM, 0);
}

int main(int argc, char **argv) {
  static char frame[1 << 17];
  if (argc != 5) return 2;
  int headers = HEADERS + (strchr(argv[2], ':') ? 20 : 0);
  int large = !strcmp(argv[4], "large"), tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
  if (tap < 0 || ioctl(tap, TUNSETIFF, &request)) fail("TUNSETIFF");
  if (large && ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | USO)) fail("TUNSETOFFLOAD");
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;
    // The interface carries frames soon after it was opened.
    usleep(200000);
    send_all(argv[2], large);
  }
  double begin = 0, seconds = atof(argv[3]), passed = 0, first = now();
  unsigned long long bytes = 0;
  struct pollfd ready = {.fd = tap, .events = POLLIN};
  while (passed < seconds && now() < first + 5 + seconds) {
    for (int i = 0; i < 64; i++) {
      ssize_t len = read(tap, frame, sizeof frame);
      if (len < 0) {
        poll(&ready, 1, 100);
        break;
      }
      // Neighbour discovery is not counted.
      if (len < headers + DATAGRAM) continue;
      if (!begin) begin = now();
      bytes += len - headers;
    }
    if (begin) passed = now() - begin;
  }
  kill(child, SIGKILL);
  printf("%llu %f\n", bytes, passed);
  return 0;
}
