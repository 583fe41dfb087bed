// A process that looks like a QEMU to timevisord, and does what a QEMU of a hostile user could do.
// Build as qemu-system-x86_64 with -rdynamic: timers_state has to be in the dynamic symbols.
//
//   -attack=plain           a page, a counter mapping, nothing else
//   -attack=truncate        takes its page away after a second
//   -attack=scribble        writes over its page all the time
//   -attack=descriptors     15,000 open files
//   -attack=maps            20,000 mappings
//   -attack=events          floods whoever connects to its QMP socket (-qmp unix:PATH,...) with events
//   -attack=garbage         the same with a line that does not end
//   -attack=silent=FOLDER   mounts a file system on FOLDER (as root), becomes user 4001, and lets its
//                           counter mapping lie in a file that is never read to the end
//   -attack=exec=FOLDER     the same file system; then keeps itself in the middle of exec: a process that shares
//                           its memory waits for that file, another one to change the memory's map
//   -attack=late=FOLDER     the same, after three seconds as a VM that can be served
//   -attack=rival=FOLDER    the same as a chronyd that is root in a user namespace of its own
//   -attack=connect=SOCKET  opens connections to a socket, writes nonsense, until killed
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096
#define MALLORY 4001

// The beginning of QEMU's struct TimersState (softmmu/timers-state.h): a running VM whose counter is
// the host's.
struct __attribute__((aligned(PAGE))) timers {
    int64_t ticks_before, ticks_offset;
    uint32_t sequence, lock;
    int16_t enabled;
    char rest[PAGE - 26];
};
__attribute__((visibility("default"))) struct timers timers_state = { .enabled = 1 };

static char *page;
static int page_fd;

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static const char *option(int count, char **words, const char *start)
{
    for (int i = 1; i < count; i++)
        if (!strncmp(words[i], start, strlen(start)))
            return words[i] + strlen(start);
    return NULL;
}

static void make_page(void)
{
    page_fd = memfd_create("vmclock_page", 0);
    must(page_fd >= 0 && !ftruncate(page_fd, PAGE), "page");
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    must(page != MAP_FAILED, "page");
    memcpy(page, "VCLK", 4);
}

// Whoever connects is flooded.
static void flood(const char *path, int events)
{
    static const char greeting[] = "{\"QMP\":{\"version\":{\"qemu\":{\"micro\":0,\"minor\":0,\"major\":10},"
                                   "\"package\":\"\"},\"capabilities\":[]}}\r\n";
    static const char event[] = "{\"event\":\"STOP\",\"timestamp\":{\"seconds\":1,\"microseconds\":2}}\r\n"
                                "{\"event\":\"RESUME\",\"timestamp\":{\"seconds\":1,\"microseconds\":2}}\r\n";
    static char bytes[1 << 20];
    size_t length = 0;
    if (events) {
        for (; length + sizeof event < sizeof bytes; length += sizeof event - 1)
            memcpy(bytes + length, event, sizeof event - 1);
    } else {
        memset(bytes, 'x', length = sizeof bytes);
    }
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    unlink(path);
    must(!bind(listener, (void *)&address, sizeof address) && !listen(listener, 8), "socket");
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            continue;
        int open = write(client, greeting, sizeof greeting - 1) > 0;
        while (open)
            open = write(client, bytes, length) > 0;
        close(client);
    }
}

static void attr(char *to, uint64_t inode, uint32_t mode)
{
    // struct fuse_attr (linux/fuse.h): ino, size, blocks, six times, three nanoseconds, mode, ...
    memset(to, 0, 88);
    uint64_t size = PAGE;
    memcpy(to, &inode, 8);
    memcpy(to + 8, &size, 8);
    uint32_t links = 1, owner = MALLORY;
    memcpy(to + 60, &mode, 4);
    memcpy(to + 64, &links, 4);
    memcpy(to + 68, &owner, 4);
    memcpy(to + 72, &owner, 4);
}

// A FUSE server with one file that is there, and is never read.
static void serve_silence(int device)
{
    static char in[1 << 17], out[256];
    for (;;) {
        ssize_t got = read(device, in, sizeof in);
        if (got < 0 && errno == ENODEV)
            exit(0);
        if (got < 40)
            continue;
        uint32_t call = *(uint32_t *)(in + 4);
        uint64_t unique = *(uint64_t *)(in + 8), node = *(uint64_t *)(in + 16);
        memset(out, 0, sizeof out);
        uint32_t length = 16;
        int32_t error = 0;
        switch (call) {
        case 26: { // FUSE_INIT
            uint32_t version[] = { 7, 31, PAGE };
            memcpy(out + 16, version, sizeof version);
            *(uint32_t *)(out + 16 + 20) = PAGE;
            length += 64;
            break;
        }
        case 1: { // FUSE_LOOKUP
            uint64_t entry[] = { 2, 0, 1000, 1000 };
            memcpy(out + 16, entry, sizeof entry);
            attr(out + 16 + 40, 2, S_IFREG | 0644);
            length += 128;
            break;
        }
        case 3: // FUSE_GETATTR
            *(uint64_t *)(out + 16) = 1000;
            attr(out + 16 + 16, node, node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644);
            length += 104;
            break;
        case 14: // FUSE_OPEN
        case 27: // FUSE_OPENDIR
            length += 16;
            *(uint64_t *)(out + 16) = 1;
            break;
        case 15: // FUSE_READ: no answer, ever
        case 2:  // FUSE_FORGET
        case 36: // FUSE_INTERRUPT
        case 42: // FUSE_BATCH_FORGET
            continue;
        default:
            error = -ENOSYS;
        }
        memcpy(out, &length, 4);
        memcpy(out + 4, &error, 4);
        memcpy(out + 8, &unique, 8);
        if (write(device, out, length) < 0 && errno == ENODEV)
            exit(0);
    }
}

// Returns the memory that never answers.
static void *silent(const char *folder)
{
    int device = open("/dev/fuse", O_RDWR);
    must(device >= 0, "/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", device, MALLORY, MALLORY);
    // What the set-user-id fusermount3 does for anybody. From here on all is done by user 4001.
    must(!mount("silence", folder, "fuse", MS_NOSUID | MS_NODEV, options), "mount");
    must(!setgroups(0, NULL) && !setgid(MALLORY) && !setuid(MALLORY), "user");
    // Whoever runs as another user than it was started as is not shown to others of that user.
    prctl(PR_SET_DUMPABLE, 1);
    pid_t server = fork();
    if (!server) {
        prctl(PR_SET_NAME, "silence");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve_silence(device);
    }
    close(device);
    char path[4096];
    snprintf(path, sizeof path, "%s/x", folder);
    int file = open(path, O_RDONLY);
    must(file >= 0, path);
    void *memory = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    must(memory != MAP_FAILED, "silent memory");
    return memory;
}

static int wait_for_memory(void *memory)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int mem = open("/proc/self/mem", O_RDONLY);
    char byte;
    return (int)pread(mem, &byte, 1, (off_t)memory);
}

static int wait_for_map(void *unused)
{
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sleep(1);
    return mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

// The first waits with the memory's lock for reading, the second for writing behind it, and exec behind
// both, with the lock that /proc takes to read what this process is (kernel/exec.c, exec_mmap).
static void stay_in_exec(void *memory)
{
    static char stacks[2][1 << 16];
    must(clone(wait_for_memory, stacks[0] + sizeof stacks[0], CLONE_VM | SIGCHLD, memory) > 0, "clone");
    must(clone(wait_for_map, stacks[1] + sizeof stacks[1], CLONE_VM | SIGCHLD, NULL) > 0, "clone");
    sleep(2);
    // Nothing here may need memory: it would wait, too.
    if (write(1, "in exec\n", 8) < 0)
        exit(1);
    execl("/bin/sleep", "sleep", "1000", NULL);
}

static void connect_for_ever(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    for (int i = 0;; i++) {
        int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (client >= 0 && !connect(client, (void *)&address, sizeof address)) {
            static const char nonsense[] = "{\"status\":[[[[[[[[[[\n\n\0\377\n{}\n";
            if (write(client, nonsense, sizeof nonsense) < 0)
                errno = 0;
        }
        // The oldest are closed in turn, so that there are always some hundreds.
        if (client > 900)
            for (int fd = 3; fd < 600; fd++)
                close(fd);
        if (i % 64 == 0)
            usleep(2000);
    }
}

int main(int count, char **words)
{
    prctl(PR_SET_NAME, "qemu-system-x86");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    const char *attack = option(count, words, "-attack=");
    const char *argument = attack ? strchr(attack, '=') : NULL;
    must(attack != NULL, "-attack=");
    struct rlimit files = { 20000, 20000 };
    setrlimit(RLIMIT_NOFILE, &files);
    if (!strncmp(attack, "connect=", 8))
        connect_for_ever(argument + 1);
    void *memory = NULL;
    if (!strncmp(attack, "silent=", 7)) {
        memory = silent(argument + 1);
        must(mremap(memory, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, &timers_state) != MAP_FAILED, "silent state");
    }
    if (!strncmp(attack, "exec=", 5) || !strncmp(attack, "late=", 5) || !strncmp(attack, "rival=", 6))
        memory = silent(argument + 1);
    if (!strncmp(attack, "rival=", 6)) {
        must(!unshare(CLONE_NEWUSER), "user namespace");
        prctl(PR_SET_NAME, "chronyd");
    }
    if (memory && attack[0] != 's' && attack[0] != 'l')
        stay_in_exec(memory);
    make_page();
    const char *socket_path = option(count, words, "unix:");
    if (!strcmp(attack, "events") || !strcmp(attack, "garbage")) {
        must(socket_path != NULL, "-qmp unix:");
        char path[100];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(socket_path, ","), socket_path);
        flood(path, attack[0] == 'e');
    }
    if (!strcmp(attack, "descriptors"))
        for (int i = 0; i < 15000; i++)
            eventfd(0, 0);
    if (!strcmp(attack, "maps"))
        for (int i = 0; i < 20000; i++)
            mmap(NULL, PAGE, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(attack, "truncate")) {
        sleep(1);
        must(!ftruncate(page_fd, 0), "truncate");
    }
    while (!strcmp(attack, "scribble")) {
        for (int i = 0; i < 200; i++)
            page[rand() & (PAGE - 1)] = (char)rand();
        usleep(200);
    }
    puts("ready");
    fflush(stdout);
    if (attack[0] == 'l') {
        sleep(3);
        stay_in_exec(memory);
    }
    for (;;)
        pause();
}
