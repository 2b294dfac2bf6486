/* The trampoline for x86_64, and the code with which creating.py starts it. The contract is in executable.py.

   `make trampoline` compiles this into image.py, which the daemon executes from memory: no compiler is needed where sfad is
   installed. There is no libc: the program is loaded in 0.1 ms, and touches nothing that a command would inherit. */

#include <errno.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <sys/syscall.h>

enum stage { ATTACH = 1, ENTER, CLOSE, EXEC, INTERPRET, BECOME, START };
enum { DOOR = 3, REPORT, GATE };
enum { LIMIT_KINDS = 16, MAX_GROUPS = 8192 }; /* as in credentials.py */

struct credentials {
    unsigned uid, gid, no_new_privs, groups;
    unsigned long limits[LIMIT_KINDS][2];
    unsigned group[MAX_GROUPS];
};
enum { HEAD = __builtin_offsetof(struct credentials, group) };

/* A system call of the table that `start_child` works through. */
struct call {
    unsigned number, may_fail;
    long arguments[4];
};

static inline __attribute__((always_inline)) long system_call(long number, long a, long b, long c, long d, long e)
{
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
#define CALL(name, a, b, c, d) system_call(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), 0)

static void __attribute__((noreturn)) leave(void)
{
    for (;;)
        CALL(exit, 127, 0, 0, 0);
}

static void __attribute__((noreturn)) fail(int report, enum stage stage, long error)
{
    long words[2] = {stage, error};
    CALL(write, report, words, sizeof words, 0);
    leave();
}

static void check(enum stage stage, long result)
{
    if (result < 0)
        fail(REPORT, stage, result);
}

/* Read from the gate, or leave: the daemon has died. A pipe gives what was written at once as a whole. */
static void receive(void *into, long size)
{
    if (CALL(read, GATE, into, size, 0) != size)
        leave();
}

static void become_user(void)
{
    struct credentials user;
    receive(&user, HEAD);
    if (user.groups > MAX_GROUPS)
        fail(REPORT, BECOME, -EINVAL);
    receive(user.group, user.groups * sizeof *user.group);
    check(BECOME, CALL(setgroups, user.groups, user.group, 0, 0));
    for (int kind = 0; kind < LIMIT_KINDS; kind++)
        check(BECOME, CALL(prlimit64, 0, kind, user.limits[kind], 0));
    check(BECOME, CALL(setresgid, user.gid, user.gid, user.gid, 0));
    check(BECOME, CALL(setresuid, user.uid, user.uid, user.uid, 0));
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    long none[3] = {0, 0, 0};
    check(BECOME, CALL(capset, &header, none, 0, 0));
    long keyring = CALL(keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0);
    if (keyring != -EPERM && keyring != -ENOSYS) /* then the command has no keyrings either */
        check(BECOME, keyring);
    if (user.no_new_privs)
        check(BECOME, CALL(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0));
}

/* Execute the first file that is there, like execvp(3). `argv` follows the empty string that ends the files. */
static void __attribute__((noreturn)) execute(char *shell, char **files, char **argv, char **envp)
{
    long verdict = -ENOENT;
    for (char **file = files; **file; file++) {
        long error = CALL(execve, *file, argv, envp, 0);
        if (error == -ENOEXEC) {
            argv[0] = *file;
            argv[-1] = shell;
            fail(REPORT, INTERPRET, CALL(execve, shell, argv - 1, envp, 0));
        }
        if (error != -ENOENT && error != -ENOTDIR)
            verdict = error;
        if (error == -E2BIG || error == -EAGAIN || error == -ENOMEM || error == -ETXTBSY)
            break;
    }
    if (verdict == -ENOENT)
        for (char **file = files; **file; file++)
            if (CALL(access, *file, 0, 0, 0) == 0)
                fail(REPORT, INTERPRET, verdict);
    fail(REPORT, EXEC, verdict);
}

/* `stack` is as execve(2) leaves it: argc, argv, a null pointer, the environment. */
__attribute__((noreturn, used)) void trampoline(long *stack)
{
    char **words = (char **)stack + 1, **files = words + 3, **argv = files;
    char *shell = words[0], *directory = words[2], gate;
    unsigned umask = 0;
    for (char *digit = words[1]; *digit; digit++)
        umask = umask * 8 + (*digit & 7);
    CALL(umask, umask, 0, 0, 0);
    check(ATTACH, CALL(write, DOOR, "0", 1, 0));
    check(CLOSE, CALL(close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC, 0));
    receive(&gate, 1);
    if (gate == 'u')
        become_user();
    check(ENTER, CALL(chdir, directory, 0, 0, 0));
    while (**argv++)
        ;
    execute(shell, files, argv, words + stack[0] + 1);
}
__asm__(".globl _start\n"
        "_start:\n"
        "    mov  %rsp, %rdi\n"
        "    and  $-16, %rsp\n"
        "    call trampoline\n");

/* In a new child of `clone_child`, on a stack of 256 bytes, in the daemon's memory: make the calls, of which the last executes
   the trampoline. */
__attribute__((noreturn, used)) void start_child(const struct call *call, int report)
{
    for (;; call++) {
        const long *given = call->arguments;
        long result = system_call(call->number, given[0], given[1], given[2], given[3], 0);
        if (result < 0 && !call->may_fail)
            fail(report, START, result);
    }
}

/* long clone_child(struct clone_args *, size_t, const struct call *, int report): clone3(2). The child has another stack, so
   nothing of C may be between the call and its first function. */
__asm__(".globl clone_child\n"
        "clone_child:\n"
        "    mov  %rdx, %r8\n"
        "    mov  %ecx, %r9d\n"
        "    mov  $435, %eax\n"
        "    syscall\n"
        "    test %rax, %rax\n"
        "    jz   1f\n"
        "    ret\n"
        "1:  mov  %r8, %rdi\n"
        "    mov  %r9d, %esi\n"
        "    call start_child\n");
