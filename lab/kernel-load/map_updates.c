// map_updates COUNT: changes a large BPF map COUNT times, or until it is killed if COUNT is 0, and
// prints how often it did.
//
// While the kernel changes a map for a program (kernel/bpf/syscall.c, bpf_disable_instrumentation),
// it runs no BPF program of a kprobe on that processor, and a preemptible kernel lets other threads
// run there meanwhile, such as a vCPU. The larger the value, the longer that takes.
#include <linux/bpf.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// A quarter of the largest value that Linux 6.1 takes.
#define VALUE (1 << 20)

static char value[VALUE];
static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

static int bpf(int command, union bpf_attr *attributes)
{
    return (int)syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

int main(int count, char **words)
{
    long wanted = count > 1 ? atol(words[1]) : 0, made = 0;
    union bpf_attr map, change;
    int key = 0;

    signal(SIGTERM, end);
    memset(&map, 0, sizeof(map));
    map.map_type = BPF_MAP_TYPE_ARRAY;
    map.key_size = sizeof(key);
    map.value_size = VALUE;
    map.max_entries = 1;
    memset(&change, 0, sizeof(change));
    change.map_fd = bpf(BPF_MAP_CREATE, &map);
    if ((int)change.map_fd < 0) {
        perror("a BPF map");
        return 1;
    }
    change.key = (unsigned long)&key;
    change.value = (unsigned long)value;
    while (!ended && (!wanted || made < wanted)) {
        if (bpf(BPF_MAP_UPDATE_ELEM, &change)) {
            perror("a change of a BPF map");
            return 1;
        }
        made++;
    }
    printf("%ld\n", made);
    return 0;
}
