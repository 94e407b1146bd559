/* delay -- emulates the latency of a link on kernels without netem: holds every packet that arrives
 * in the given network namespaces for a fixed time. Packets wait in an NFQUEUE of each namespace
 * until this program accepts them.
 *
 *     delay MICROSECONDS NAMESPACE...        until it is killed; tests/netlab/lab.sh sets the
 *                                            iptables rules
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <libnetfilter_queue/libnetfilter_queue.h>
#include <linux/netfilter.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HOSTS = 64, HELD = 1 << 15, HEADER = 64, SOCKET_BYTES = 32 << 20 };

/* The packets held in one namespace: entries [first, last) of a ring buffer. */
typedef struct Host {
    struct nfq_handle *netlink;
    struct nfq_q_handle *queue;
    uint32_t id[HELD];
    int64_t due[HELD]; // ns; packets are in the order of arrival, so these times ascend
    unsigned first, last;
} Host;

static int64_t delay_ns;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Called for each packet that arrives: adds it to the ring. */
static int arrived(struct nfq_q_handle *queue, struct nfgenmsg *message, struct nfq_data *data,
                   void *ctx) {
    Host *h = ctx;
    struct nfqnl_msg_packet_hdr *header = nfq_get_msg_packet_hdr(data);
    (void)queue, (void)message;
    if (!header) return 0;
    h->id[h->last % HELD] = ntohl(header->packet_id);
    h->due[h->last++ % HELD] = now_ns() + delay_ns;
    return 0;
}

/* Opens the queue of a namespace. The socket belongs to the namespace in which it is opened; the
 * program itself returns to the outside, where `lab.sh stop` does not end it. */
static void open_host(Host *h, const char *name, int outside) {
    const uint32_t flags = NFQA_CFG_F_GSO | NFQA_CFG_F_FAIL_OPEN;
    char path[256];
    int bytes = SOCKET_BYTES;
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET)) fail(path);
    close(space);
    h->netlink = nfq_open();
    h->queue = h->netlink ? nfq_create_queue(h->netlink, 0, arrived, h) : NULL;
    if (!h->queue || nfq_set_mode(h->queue, NFQNL_COPY_PACKET, HEADER) < 0 ||
        nfq_set_queue_maxlen(h->queue, HELD) < 0 || nfq_set_queue_flags(h->queue, flags, flags) < 0)
        fail("NFQUEUE");
    if (setns(outside, CLONE_NEWNET)) fail("setns");
    setsockopt(nfq_fd(h->netlink), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
}

/* Accepts the packets that are due. Returns the time at which the next packet is due, or 0. */
static int64_t release(Host *h) {
    unsigned begin = h->first;
    for (int64_t now = now_ns(); h->first != h->last && h->due[h->first % HELD] <= now;) h->first++;
    if (h->first != begin) nfq_set_verdict_batch(h->queue, h->id[(h->first - 1) % HELD], NF_ACCEPT);
    return h->first != h->last ? h->due[h->first % HELD] : 0;
}

static void receive(Host *h) {
    char buffer[1 << 16];
    ssize_t n;
    while ((n = recv(nfq_fd(h->netlink), buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
        nfq_handle_packet(h->netlink, buffer, (int)n);
}

int main(int argc, char **argv) {
    int n = argc - 2, timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int outside = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (n < 1 || n > MAX_HOSTS) return fprintf(stderr, "delay MICROSECONDS NAMESPACE...\n"), 2;
    Host *host = calloc((size_t)n, sizeof *host);
    struct pollfd poll_at[MAX_HOSTS + 1];
    if (!host || timer < 0 || outside < 0) fail("delay");
    delay_ns = 1000LL * atol(argv[1]);
    prctl(PR_SET_TIMERSLACK, 1000UL); // ns
    // a higher priority than ranks that compute or spin, which `lab.sh first` puts before all other
    // processes; otherwise packets are late by milliseconds
    if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}))
        fail("sched_setscheduler");
    for (int i = 0; i < n; i++) {
        open_host(&host[i], argv[2 + i], outside);
        poll_at[i] = (struct pollfd){.fd = nfq_fd(host[i].netlink), .events = POLLIN};
    }
    poll_at[n] = (struct pollfd){.fd = timer, .events = POLLIN};
    for (;;) {
        int64_t next = 0;
        for (int i = 0; i < n; i++) {
            int64_t due = release(&host[i]);
            if (due && (!next || due < next)) next = due;
        }
        struct itimerspec at = {.it_value = {next / 1000000000, next % 1000000000}}; // 0: disarmed
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
        poll(poll_at, (nfds_t)n + 1, -1);
        for (int i = 0; i < n; i++)
            if (poll_at[i].revents) receive(&host[i]);
    }
}
