/* Another oscillator for the processes of one lab host: LD_PRELOAD=oscillator.so traps every rdtsc and rdtscp (prctl(2)
 * PR_SET_TSC) and answers with
 *
 *     counter = t + t * PPB / 10^9 + OFFSET + AMPLITUDE / 10^9 * PERIOD / 2 pi * sin(2 pi t / PERIOD)
 *
 * where t is the machine's TSC: another rate, another start, and a rate that swings by AMPLITUDE ppb. It is a function of t
 * alone, so that all processes of a host see one counter. For timevisord and for QEMU alike, and through an emulating QEMU for
 * its guest, they then run on a machine with this counter; none of them is changed or knows. Only for tests: nothing of
 * it is in any program of ours. A read takes 3 us instead of 10 ns.
 *
 * Parameters: LAB_OSCILLATOR="PPB OFFSET AMPLITUDE PERIOD", PERIOD in ticks of the TSC. oscillator.rs has the inverse.
 * The vDSO's own reads are answered with the TSC: the kernel's clocks are those of the machine.
 *
 * A program that such a process starts (timevisord's helpers) would read the TSC before any library of it is loaded, and be
 * killed: traps are inherited. So it starts without them, and with this library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>
#include <x86intrin.h>

static int64_t ppb, offset;
static double amplitude_ppb, period;
static uintptr_t vdso_from, vdso_to;
static char preload[4096], parameters[256];

static uint64_t counter(uint64_t tsc) {
    double turns = fmod((double)tsc, period) / period;
    double swing = amplitude_ppb * 1e-9 * period / (2 * M_PI) * sin(2 * M_PI * turns);
    int64_t rate = (int64_t)((__int128)tsc * ppb / 1000000000);
    return tsc + (uint64_t)(rate + offset + (int64_t)swing);
}

static void trap(int signal_number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *at = (const uint8_t *)registers[REG_RIP];
    int is_rdtsc = at[0] == 0x0f && at[1] == 0x31;
    int is_rdtscp = at[0] == 0x0f && at[1] == 0x01 && at[2] == 0xf9;
    if (!is_rdtsc && !is_rdtscp) {
        /* A fault of the program's own: it happens again, without us. */
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned int processor;
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
    uint64_t value = __rdtscp(&processor);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    if ((uintptr_t)at < vdso_from || (uintptr_t)at >= vdso_to)
        value = counter(value);
    registers[REG_RAX] = (greg_t)(value & 0xffffffff);
    registers[REG_RDX] = (greg_t)(value >> 32);
    if (is_rdtscp)
        registers[REG_RCX] = processor;
    registers[REG_RIP] += is_rdtsc ? 2 : 3;
}

typedef int spawner(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,
                    char *const *);

/* The environment of a child, which may have been emptied, and what this library needs. */
static char **with_ours(char *const *environment) {
    size_t count = 0;
    while (environment && environment[count])
        count++;
    char **all = calloc(count + 3, sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, environment, count * sizeof *all);
    all[count] = preload;
    all[count + 1] = parameters;
    return all;
}

/* The trap is the calling thread's, and its child inherits it. */
static int untrapped(const char *name, pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                     const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment) {
    spawner *real = (spawner *)dlsym(RTLD_NEXT, name);
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
    char **all = with_ours(environment);
    int result = real(pid, path, actions, attributes, arguments, all ? all : environment);
    free(all);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    return result;
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                char *const *arguments, char *const *environment) {
    return untrapped("posix_spawn", pid, path, actions, attributes, arguments, environment);
}

int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const *arguments, char *const *environment) {
    return untrapped("posix_spawnp", pid, path, actions, attributes, arguments, environment);
}

static void die(const char *reason) {
    fprintf(stderr, "oscillator.so: %s\n", reason);
    _exit(125);
}

static void find_vdso(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]"))
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &vdso_from, &vdso_to);
    if (maps)
        fclose(maps);
    if (!vdso_to)
        die("no vDSO in /proc/self/maps");
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("LAB_OSCILLATOR");
    if (!text || sscanf(text, "%" SCNd64 " %" SCNd64 " %lf %lf", &ppb, &offset, &amplitude_ppb, &period) != 4 || period <= 0)
        die("set LAB_OSCILLATOR=\"PPB OFFSET AMPLITUDE PERIOD\"");
    snprintf(parameters, sizeof parameters, "LAB_OSCILLATOR=%s", text);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "");
    find_vdso();
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    if (sigaction(SIGSEGV, &action, NULL) || prctl(PR_SET_TSC, PR_TSC_SIGSEGV))
        die("this kernel does not trap rdtsc (prctl PR_SET_TSC)");
}
