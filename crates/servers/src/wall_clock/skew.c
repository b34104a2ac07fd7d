/* Preloaded into a process: its wall clock stands apart from the machine's by the nanoseconds in a mapped file, and its
 * monotonic clock is behind by those that follow, as if the machine had slept for so long.
 *
 * It asks the kernel by itself and allocates nothing: allocators ask for the time while they start.
 *
 * Programs in Go ask the kernel's vDSO instead of the C library. The kernel tells them where that is in the auxiliary vector
 * on their stack (getauxval(3)), which they read after the libraries that the dynamic linker loaded have begun. So they are
 * told of another one: an ELF image with one symbol. One that is linked statically loads nothing, and is not reached. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("WALL_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, 2 * sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offset = mapped;
}

static void set_apart(clockid_t id, struct timespec *now) {
    if (!offset) return;
    int64_t apart;
    switch (id) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: apart = offset[0]; break;
    case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_COARSE: case CLOCK_MONOTONIC_RAW: apart = -offset[1]; break;
    default: return;
    }
    int64_t nanos = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + apart;
    now->tv_sec = nanos / 1000000000;
    now->tv_nsec = nanos % 1000000000;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed) set_apart(id, now);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (!failed && now) {
        now->tv_sec = precise.tv_sec;
        now->tv_usec = precise.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *into) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

#if defined(__x86_64__) || defined(__aarch64__)

/* Called on a small stack by threads that the C library may know nothing of: it has no errno to set. */
static long from_vdso(clockid_t id, struct timespec *now) {
#ifdef __x86_64__
    long failed;
    __asm__ volatile("syscall" : "=a"(failed) : "0"((long)SYS_clock_gettime), "D"((long)id), "S"(now)
                     : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = SYS_clock_gettime;
    register long failed __asm__("x0") = id;
    register struct timespec *into __asm__("x1") = now;
    __asm__ volatile("svc 0" : "+r"(failed) : "r"(number), "r"(into) : "memory");
#endif
    if (!failed) set_apart(id, now);
    return failed;
}

/* Names as in vdso(7), and the hash of the version's as the System V ABI counts it. */
#ifdef __x86_64__
#define SYMBOL "__vdso_clock_gettime"
#define VERSION "LINUX_2.6"
#define VERSION_HASH 0x3ae75f6
#else
#define SYMBOL "__kernel_clock_gettime"
#define VERSION "LINUX_2.6.39"
#define VERSION_HASH 0x75fcb89
#endif

/* As little as makes a vDSO: one segment at the image's beginning, a table with one bucket and one symbol, one version. */
static struct {
    Elf64_Ehdr head;
    Elf64_Phdr segments[2];
    Elf64_Dyn dynamic[6];
    Elf64_Sym symbols[2];
    struct {
        Elf64_Verdef definition;
        Elf64_Verdaux name;
    } version;
    uint32_t hash[2 + 1 + 2];
    Elf64_Half versions[2];
    char empty[1], symbol[sizeof SYMBOL], version_name[sizeof VERSION];
} vdso = {.hash = {1, 2, 1, 0, 0}, .versions = {0, 2}, .symbol = SYMBOL, .version_name = VERSION};

#define AT(part) offsetof(__typeof__(vdso), part)

__attribute__((constructor)) static void tell_of_our_vdso(int count, char **arguments, char **environment) {
    (void)count, (void)arguments;
    if (!offset) return;
    vdso.head.e_phoff = AT(segments);
    vdso.head.e_phnum = 2;
    vdso.segments[0] = (Elf64_Phdr){.p_type = PT_LOAD};
    vdso.segments[1] = (Elf64_Phdr){.p_type = PT_DYNAMIC, .p_offset = AT(dynamic), .p_vaddr = AT(dynamic)};
    vdso.dynamic[0] = (Elf64_Dyn){.d_tag = DT_STRTAB, .d_un.d_val = AT(empty)};
    vdso.dynamic[1] = (Elf64_Dyn){.d_tag = DT_SYMTAB, .d_un.d_val = AT(symbols)};
    vdso.dynamic[2] = (Elf64_Dyn){.d_tag = DT_HASH, .d_un.d_val = AT(hash)};
    vdso.dynamic[3] = (Elf64_Dyn){.d_tag = DT_VERSYM, .d_un.d_val = AT(versions)};
    vdso.dynamic[4] = (Elf64_Dyn){.d_tag = DT_VERDEF, .d_un.d_val = AT(version)};
    vdso.version.definition = (Elf64_Verdef){.vd_version = 1, .vd_ndx = 2, .vd_cnt = 1, .vd_hash = VERSION_HASH,
                                             .vd_aux = sizeof vdso.version.definition};
    vdso.version.name.vda_name = AT(version_name) - AT(empty);
    vdso.symbols[1].st_name = AT(symbol) - AT(empty);
    vdso.symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    vdso.symbols[1].st_shndx = 1; /* any that is not undefined */
    vdso.symbols[1].st_value = (uintptr_t)from_vdso - (uintptr_t)&vdso;
    while (*environment) environment++;
    for (Elf64_auxv_t *told = (Elf64_auxv_t *)(environment + 1); told->a_type != AT_NULL; told++)
        if (told->a_type == AT_SYSINFO_EHDR) told->a_un.a_val = (uintptr_t)&vdso;
}

#endif
