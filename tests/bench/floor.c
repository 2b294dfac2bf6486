// The floor: what bare system calls reach; and the programs that all peers run or are loaded with. One program, because each part
// is small. Times are nanoseconds of CLOCK_MONOTONIC.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void need(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static pid_t spawn(char **argv, posix_spawn_file_actions_t *actions) {
    pid_t pid;
    need(!posix_spawnp(&pid, argv[0], actions, 0, argv, environ), argv[0]);
    return pid;
}

static void unix_address(struct sockaddr_un *address, const char *path) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
}

// stamp SOCKET: send the time at which main() begins. `-`: to stdout
static int stamp(char **argv) {
    long long at = now();
    if (!strcmp(argv[0], "-"))
        return write(1, &at, sizeof at) != sizeof at;
    struct sockaddr_un address;
    unix_address(&address, argv[0]);
    return sendto(socket(AF_UNIX, SOCK_DGRAM, 0), &at, sizeof at, 0, (void *)&address, sizeof address) != sizeof at;
}

// started N: start `stamp` N times, one at a time; print the time from each start until its main() begins
static int started(char **argv) {
    char *command[] = {"/proc/self/exe", "stamp", "-", 0};
    int ends[2];
    need(!pipe2(ends, O_CLOEXEC), "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    for (int n = atoi(argv[0]); n--;) {
        long long begun = now(), at;
        pid_t pid = spawn(command, &actions);
        need(read(ends[0], &at, sizeof at) == sizeof at, "read");
        waitpid(pid, 0, 0);
        printf("%lld\n", at - begun);
    }
    return 0;
}

// ended N PROGRAM: run it N times, one at a time; print the time of each
static int ended(char **argv) {
    for (int n = atoi(argv[0]); n--;) {
        long long begun = now();
        waitpid(spawn(argv + 1, 0), 0, 0);
        printf("%lld\n", now() - begun);
    }
    return 0;
}

// many N AT_ONCE PROGRAM: run it N times, so many at once; print the time of all
static int many(char **argv) {
    int free = atoi(argv[1]);
    long long begun = now();
    for (int n = atoi(argv[0]), running = 0; n || running; running--, wait(0))
        for (; n && running <= free - 1; n--, running++)
            spawn(argv + 2, 0);
    printf("%lld\n", now() - begun);
    return 0;
}

static void end_children(int number) {
    (void)number;
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(0) > 0)
        ;
    _exit(0);
}

// sleepers N: keep N processes asleep until SIGTERM
static int sleepers(char **argv) {
    char *command[] = {"/bin/sleep", "1000", 0};
    setpgid(0, 0);
    for (int n = atoi(argv[0]); n--;)
        spawn(command, 0);
    signal(SIGTERM, end_children);
    puts("ready");
    fflush(stdout);
    while (pause())
        ;
    return 0;
}

// spew BYTES: write so many to stdout, in lines of 100, 4 KiB at a time
static int spew(char **argv) {
    static char block[4096 + 100];
    memset(block, 'x', sizeof block);
    for (size_t at = 99; at < sizeof block; at += 100)
        block[at] = '\n';
    for (long long left = atoll(argv[0]), at = 0; left;) {
        ssize_t done = write(1, block + at % 100, left < 4096 ? left : 4096);
        need(done > 0, "write");
        left -= done;
        at += done;
    }
    return 0;
}

static void nap(void) {
    alarm(300);
    for (;;)
        pause();
}

// tree MARK N ESCAPED STUBBORN: N sleeping descendants in ten chains, but so many are double-forked into sessions of their own, and
// so many ignore SIGTERM. They are found by MARK, a word of their command line, and end by themselves after five minutes.
static int tree(char **argv) {
    int all = atoi(argv[1]), escaped = atoi(argv[2]), stubborn = atoi(argv[3]);
    for (int i = 0; i < escaped; i++) {
        if (!fork()) {
            setsid();
            if (!fork())
                nap();
            _exit(0);
        }
        wait(0);
    }
    for (int chain = 0; chain < 10; chain++) {
        int length = (all - escaped) / 10 + (chain < (all - escaped) % 10);
        if (!length || fork())
            continue;
        if (chain < stubborn)
            signal(SIGTERM, SIG_IGN);
        while (--length && !fork())
            signal(SIGTERM, SIG_DFL);
        nap();
    }
    nap();
    return 0;
}

// serve SOCKET BYTES: answer each request, of at most 4 KiB, with a frame of so many bytes
static int serve(char **argv) {
    size_t size = atoi(argv[1]) + 4;
    char *reply = calloc(1, size), request[4096];
    *(uint32_t *)reply = htonl(size - 4);
    struct sockaddr_un address;
    unix_address(&address, argv[0]);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), poll = epoll_create1(0);
    need(!bind(listener, (void *)&address, sizeof address) && !listen(listener, 512), "listen");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[64];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    puts("ready");
    fflush(stdout);
    for (int n; (n = epoll_wait(poll, ready, 64, -1)) > 0;)
        while (n--) {
            int one = ready[n].data.fd;
            if (one == listener) {
                event.data.fd = accept(listener, 0, 0);
                epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
            } else if (recv(one, request, sizeof request, 0) <= 0) {
                close(one);
            } else {
                for (size_t sent = 0; sent < size;) {
                    ssize_t done = send(one, reply + sent, size - sent, MSG_NOSIGNAL);
                    if (done <= 0)
                        break;
                    sent += done;
                }
            }
        }
    return 1;
}

// Return the size of the first message in `data`, or 0 if more has to come. `http` is for supervisord.
static size_t message(const char *framing, const char *data, size_t size) {
    size_t whole = 0;
    if (!strcmp(framing, "http")) {
        char *end = memmem(data, size, "\r\n\r\n", 4), *length = end ? strcasestr(data, "content-length:") : 0;
        whole = length ? end + 4 - data + strtoull(length + 15, 0, 10) : 0;
    } else if (size >= 4) {
        uint32_t body;
        memcpy(&body, data, 4);
        whole = 4 + (size_t)ntohl(body);
    }
    return whole <= size ? whole : 0;
}

struct client {
    int socket;
    char *data;
    size_t size, room;
    long long asked;
};

static size_t load(const char *path, char **content) {
    FILE *file = fopen(path, "rb");
    need(file != 0, path);
    *content = malloc(1 << 20);
    size_t size = fread(*content, 1, 1 << 20, file);
    fclose(file);
    return size;
}

static int compare(const void *a, const void *b) {
    long long one = *(long long *)a, other = *(long long *)b;
    return (one > other) - (one < other);
}

static int report(long long *taken, size_t count, long long wall) {
    need(count > 0, "no request was answered");
    qsort(taken, count, sizeof *taken, compare);
    printf("%zu %lld %lld %lld\n", count, wall, taken[count / 2], taken[(size_t)(count * 0.99)]);
    return 0;
}

static void receive(struct client *one) {
    if (one->room - one->size < 1 << 16)
        need((one->data = realloc(one->data, (one->room = 2 * one->room + (1 << 17)) + 1)) != 0, "realloc");
    ssize_t done = recv(one->socket, one->data + one->size, one->room - one->size, 0);
    need(done > 0, "the connection ended");
    one->data[one->size += done] = 0;
}

// ask SOCKET FRAMING GREETING REQUEST CLIENTS SECONDS: each client repeats the request of a file, after the greeting of another if
// that is not empty; print how many were answered, the time of all, and the median and the 99th percentile of one
static int ask(char **argv) {
    char *greeting, *request;
    size_t greeting_size = load(argv[2], &greeting), request_size = load(argv[3], &request), count = 0, room = 1 << 22;
    int clients = atoi(argv[4]), poll = epoll_create1(0);
    struct client *all = calloc(clients, sizeof *all);
    long long *taken = malloc(room * sizeof *taken);
    struct sockaddr_un address;
    unix_address(&address, argv[0]);
    for (struct client *one = all; one < all + clients; one++) {
        one->socket = socket(AF_UNIX, SOCK_STREAM, 0);
        need(!connect(one->socket, (void *)&address, sizeof address), "connect");
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
        epoll_ctl(poll, EPOLL_CTL_ADD, one->socket, &event);
        if (greeting_size)
            send(one->socket, greeting, greeting_size, 0);
        while (greeting_size && !message(argv[1], one->data, one->size))
            receive(one);
        one->size = 0;
    }
    long long begun = now(), end = begun + (long long)(1e9 * atof(argv[5]));
    for (struct client *one = all; one < all + clients; one++) {
        one->asked = now();
        send(one->socket, request, request_size, 0);
    }
    struct epoll_event ready[64];
    while (now() < end && count < room)
        for (int n = epoll_wait(poll, ready, 64, 200); n-- > 0 && count < room;) {
            struct client *one = ready[n].data.ptr;
            receive(one);
            if (!message(argv[1], one->data, one->size))
                continue;
            one->size = 0;
            taken[count++] = now() - one->asked;
            one->asked = now();
            send(one->socket, request, request_size, 0);
        }
    return report(taken, count, now() - begun);
}

// call CLIENTS SECONDS PROGRAM: keep so many of it running; print what `ask` prints
static int call(char **argv) {
    int clients = atoi(argv[0]);
    long long *taken = malloc((1 << 20) * sizeof *taken), *begun = calloc(clients, sizeof *begun), first = now();
    long long end = first + (long long)(1e9 * atof(argv[1]));
    pid_t *pids = calloc(clients, sizeof *pids), pid = 0;
    size_t count = 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    do
        for (int i = 0; i < clients; i++)
            if (pids[i] == pid) {
                if (pid)
                    taken[count++] = now() - begun[i];
                begun[i] = now();
                pids[i] = now() < end ? spawn(argv + 2, &actions) : -1;
            }
    while ((pid = wait(0)) > 0);
    return report(taken, count, now() - first);
}

int main(int count, char **argv) {
    struct {
        const char *name;
        int arguments;
        int (*main)(char **);
    } parts[] = {{"stamp", 1, stamp}, {"started", 1, started}, {"ended", 2, ended}, {"many", 3, many}, {"sleepers", 1, sleepers},
                 {"spew", 1, spew}, {"tree", 4, tree}, {"serve", 2, serve}, {"ask", 6, ask}, {"call", 3, call}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count >= 2 + parts[i].arguments && !strcmp(argv[1], parts[i].name))
            return parts[i].main(argv + 2);
    return 2;
}
