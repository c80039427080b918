/* System calls without the C library, for code that runs before it is ready, or beside a thread whose errno it shares;
 * and the userfaultfd with which a page is mapped alone.
 *
 * The kernel maps up to 16 pages of a file at the first touch of one. Not so in memory that is registered with a
 * userfaultfd: then the pages that a process has mapped are those that it touched. Writes are watched for in name only
 * (asynchronously, Linux 6.7): the kernel asks nobody, so that no page ever waits for an answer. */
#ifndef TORCHTAILOR_RAW_H
#define TORCHTAILOR_RAW_H

#include <linux/userfaultfd.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define TT_WRITES_ASYNC (UINT64_C(1) << 15) /* UFFD_FEATURE_WP_ASYNC */
#define TT_O_CLOEXEC 02000000

static inline long tt_raw(long number, long a, long b, long c, long d, long e) {
#if defined __x86_64__
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
#elif defined __aarch64__
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#else
#error "the recorder is for x86_64 and aarch64"
#endif
}

/* A userfaultfd of this process, or a negative number where the kernel has none or does not allow it. */
static inline int tt_new_userfaultfd(void) {
    long file = tt_raw(SYS_userfaultfd, TT_O_CLOEXEC | UFFD_USER_MODE_ONLY, 0, 0, 0, 0);
    struct uffdio_api api = {.api = UFFD_API, .features = TT_WRITES_ASYNC};
    if (file >= 0 && tt_raw(SYS_ioctl, file, (long)UFFDIO_API, (long)&api, 0, 0)) {
        tt_raw(SYS_close, file, 0, 0, 0, 0);
        return -1;
    }
    return (int)file;
}

static inline long tt_register(int file, uintptr_t start, uintptr_t end) {
    struct uffdio_register range = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_WP};
    return tt_raw(SYS_ioctl, file, (long)UFFDIO_REGISTER, (long)&range, 0, 0);
}

#endif
