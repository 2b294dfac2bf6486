/* The holder of one run's terminal, for x86_64. The contract is in holding.py; in_python.py does the same for other machines.

   `make trampoline` compiles this into image.py, which the daemon executes from memory. There is no libc: a holder takes
   0.1 MiB at most. It writes what the programs in the terminal show to the run's output file, and types what the daemon tells it to. It
   follows the cursor, because programs ask the terminal for its place, and a terminal must answer also if no person looks. */

#include <asm/ioctls.h>
#include <errno.h>
#include <linux/fcntl.h>
#include <linux/poll.h>
#include <linux/prctl.h>
#include <linux/time.h>
#include <sys/syscall.h>

enum { MASTER = 0, OUTPUT, ORDERS, TIMES }; /* descriptors */
enum { PIECE = 65536, ORDER = 4096, ANSWERS = 1024, PARAMETERS = 8, PAUSE = 100 };
enum { APART = 10, MOST_TIMES = 8 << 20 }; /* milliseconds between records, and bytes of them */

typedef unsigned char byte;

static inline __attribute__((always_inline)) long system_call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}
#define CALL(name, a, b, c) system_call(SYS_##name, (long)(a), (long)(b), (long)(c))

/* The compiler may make calls of these. */
__attribute__((used)) void *memcpy(void *to, const void *from, unsigned long size)
{
    for (unsigned long i = 0; i < size; i++)
        ((byte *)to)[i] = ((const byte *)from)[i];
    return to;
}

__attribute__((used)) void *memset(void *at, int value, unsigned long size)
{
    for (unsigned long i = 0; i < size; i++)
        ((byte *)at)[i] = value;
    return at;
}

static void __attribute__((noreturn)) leave(void)
{
    for (;;)
        CALL(exit_group, 0, 0, 0);
}

static void pause_for(int milliseconds)
{
    CALL(poll, 0, 0, milliseconds);
}

/* ---- What is to be typed: orders of the daemon, and answers of the terminal */

static byte typed[ORDER + ANSWERS];
static int typed_from, typed_to;

static void type(void)
{
    long written = CALL(write, MASTER, typed + typed_from, typed_to - typed_from);
    if (written > 0)
        typed_from += written;
    else if (written != -EAGAIN && written != -EINTR)
        typed_from = typed_to; /* no process has the terminal any more */
    if (typed_from == typed_to)
        typed_from = typed_to = 0;
}

static void say(const char *text)
{
    while (*text && typed_to < (int)sizeof typed)
        typed[typed_to++] = *text++;
}

static void say_number(unsigned number)
{
    char digits[12];
    int at = sizeof digits;
    digits[--at] = 0;
    do
        digits[--at] = '0' + number % 10;
    while (number /= 10);
    say(digits + at);
}

/* ---- The terminal's state, as far as answers depend on it: size and cursor. Rows and columns begin with 0. */

struct place {
    int row, column;
    byte past; /* a character stands in the last column: the next one begins a line */
};
static struct {
    unsigned short ws_row, ws_col, ws_xpixel, ws_ypixel;
} size; /* a struct winsize: its header is libc's */
static struct place cursor, saved;
static int top, bottom;
static byte no_wrap, from_top;

static int within(int value, int least, int most)
{
    return value < least ? least : value > most ? most : value;
}

static void move(int row, int column)
{
    cursor.row = within(row, 0, size.ws_row - 1);
    cursor.column = within(column, 0, size.ws_col - 1);
    cursor.past = 0;
}

static void reset(void)
{
    top = 0;
    bottom = size.ws_row - 1;
    no_wrap = from_top = 0;
    move(0, 0);
    saved = cursor;
}

static void resized(void)
{
    if (CALL(ioctl, MASTER, TIOCGWINSZ, &size) < 0 || !size.ws_row || !size.ws_col) {
        size.ws_row = 24;
        size.ws_col = 80;
    }
    top = 0;
    bottom = size.ws_row - 1;
    move(cursor.row, cursor.column);
}

static void next_line(void)
{
    if (cursor.row != bottom)
        move(cursor.row + 1, cursor.column);
    cursor.past = 0;
}

static int width(unsigned c)
{
    static const unsigned ranges[][2] = {
        {0x300, 0x36f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xe0100, 0xe01ef}, /* none */
        {0x1100, 0x115f}, {0x231a, 0x231b}, {0x23e9, 0x23ec}, {0x2e80, 0x303e}, {0x3041, 0xa4cf}, {0xa960, 0xa97f},
        {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6},
        {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd},
    };
    for (unsigned i = 0; c >= 0x300 && i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return i < 5 ? 0 : 2;
    return 1;
}

static void print(unsigned character)
{
    int cells = width(character);
    if (!cells)
        return;
    if ((cursor.past || cursor.column + cells > size.ws_col) && !no_wrap) {
        cursor.column = 0;
        next_line();
    }
    cursor.column += cells;
    cursor.past = cursor.column >= size.ws_col;
    if (cursor.past)
        cursor.column = size.ws_col - 1;
}

/* ---- What programs write: control sequences (ECMA-48) and UTF-8. Only what moves the cursor or asks something counts. */

static enum { GROUND, ESCAPE, SKIP, SEQUENCE, STRING, STRING_ESCAPE } state;
static unsigned parameter[PARAMETERS], count, character, more;
static byte prefix, between;

static int amount(unsigned index)
{
    unsigned value = index <= count ? parameter[index] : 0;
    return value ? within(value, 1, 32767) : 1;
}

static void answer(byte final)
{
    if (final == 'n' && parameter[0] == 5 && !prefix) {
        say("\033[0n");
    } else if (final == 'n' && parameter[0] == 6) {
        say(prefix ? "\033[?" : "\033[");
        say_number(cursor.row - (from_top ? top : 0) + 1);
        say(";");
        say_number(cursor.column + 1);
        say("R");
    } else if (final == 'c' && !parameter[0] && prefix != '=') {
        say(prefix == '>' ? "\033[>0;10;0c" : "\033[?62;22c");
    } else if (final == 'p' && between == '$') {
        say(prefix ? "\033[?" : "\033[");
        say_number(parameter[0]);
        say(";0$y");
    } else if (final == 't' && parameter[0] == 18 && !prefix) {
        say("\033[8;");
        say_number(size.ws_row);
        say(";");
        say_number(size.ws_col);
        say("t");
    }
}

static void set_mode(unsigned mode, int on)
{
    if (mode == 6) {
        from_top = on;
        move(on ? top : 0, 0);
    } else if (mode == 7) {
        no_wrap = !on;
    } else if (mode == 1048 || mode == 1049) {
        if (on)
            saved = cursor;
        else
            cursor = saved;
    }
}

static void carry_out(byte final)
{
    int n = amount(0);
    if (final == 'n' || final == 'c' || final == 'p' || final == 't') {
        answer(final);
    } else if (prefix == '?' && (final == 'h' || final == 'l')) {
        for (unsigned i = 0; i <= count; i++)
            set_mode(parameter[i], final == 'h');
    } else if (!prefix && !between) {
        int above = cursor.row < top ? 0 : top, below = cursor.row > bottom ? size.ws_row - 1 : bottom;
        switch (final) {
        case 'A': move(within(cursor.row - n, above, below), cursor.column); break;
        case 'B': case 'e': move(within(cursor.row + n, above, below), cursor.column); break;
        case 'C': case 'a': move(cursor.row, cursor.column + n); break;
        case 'D': move(cursor.row, cursor.column - n); break;
        case 'E': move(within(cursor.row + n, above, below), 0); break;
        case 'F': move(within(cursor.row - n, above, below), 0); break;
        case 'G': case '`': move(cursor.row, n - 1); break;
        case 'd': move(n - 1 + (from_top ? top : 0), cursor.column); break;
        case 'H': case 'f': move(n - 1 + (from_top ? top : 0), amount(1) - 1); break;
        case 'L': case 'M': move(cursor.row, 0); break;
        case 's': saved = cursor; break;
        case 'u': cursor = saved; break;
        case 'b': while (n-- > 0) print('x'); break;
        case 'r':
            top = within(n, 1, size.ws_row) - 1;
            bottom = (count && parameter[1] ? within(parameter[1], 1, size.ws_row) : size.ws_row) - 1;
            if (top >= bottom) {
                top = 0;
                bottom = size.ws_row - 1;
            }
            move(from_top ? top : 0, 0);
        }
    }
}

static void control(byte c)
{
    if (c == '\b')
        move(cursor.row, cursor.column - 1);
    else if (c == '\t')
        move(cursor.row, (cursor.column | 7) + 1);
    else if (c == '\n' || c == '\v' || c == '\f')
        next_line();
    else if (c == '\r')
        move(cursor.row, 0);
    else if (c == 033)
        state = ESCAPE;
    else if (c == 030 || c == 032)
        state = GROUND;
}

static void escape(byte c)
{
    state = GROUND;
    if (c == '[') {
        state = SEQUENCE;
        prefix = between = count = 0;
        memset(parameter, 0, sizeof parameter);
    } else if (c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_') {
        state = STRING;
    } else if (c >= ' ' && c <= '/') {
        state = SKIP;
    } else if (c == '7') {
        saved = cursor;
    } else if (c == '8') {
        cursor = saved;
    } else if (c == 'D') {
        next_line();
    } else if (c == 'E') {
        cursor.column = 0;
        next_line();
    } else if (c == 'M') {
        if (cursor.row != top)
            move(cursor.row - 1, cursor.column);
    } else if (c == 'c') {
        reset();
    }
}

static void show(byte c)
{
    if (state == STRING || state == STRING_ESCAPE) {
        if (state == STRING_ESCAPE && c != '\\' && c != 033) {
            state = ESCAPE;
            escape(c);
        } else {
            state = c == 033 ? STRING_ESCAPE : c == 7 || c == 030 || c == 032 || state == STRING_ESCAPE ? GROUND : STRING;
        }
    } else if (c < ' ') {
        more = 0;
        control(c);
    } else if (state == ESCAPE) {
        escape(c);
    } else if (state == SKIP) {
        state = c <= '/' ? SKIP : GROUND;
    } else if (state == SEQUENCE) {
        if (c >= '0' && c <= '9') {
            parameter[count] = within(parameter[count] * 10 + c - '0', 0, 99999);
        } else if (c == ';' || c == ':') {
            count = within(count + 1, 0, PARAMETERS - 1);
        } else if (c >= '<' && c <= '?') {
            prefix = c;
        } else if (c <= '/') {
            between = c;
        } else {
            state = GROUND;
            carry_out(c);
        }
    } else if (c == 127) {
    } else if (c < 128) {
        more = 0;
        print(c);
    } else if (c < 192) {
        if (more) {
            character = character << 6 | (c & 63);
            if (!--more)
                print(character);
        }
    } else {
        more = c < 224 ? 1 : c < 240 ? 2 : 3;
        character = c & (63 >> more);
    }
}

/* ---- What is kept */

static long long offset; /* of the output file's end */

static struct record {
    long long milliseconds, offset;
    unsigned rows, columns;
} last;
static long recorded;

static void record(int always)
{
    struct __kernel_timespec now;
    CALL(clock_gettime, 0, &now, 0);
    long long milliseconds = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (!always && (milliseconds - last.milliseconds < APART || recorded > MOST_TIMES))
        return;
    last = (struct record){milliseconds, offset, size.ws_row, size.ws_col};
    recorded += sizeof last;
    CALL(write, TIMES, &last, sizeof last);
}

static void keep(const byte *data, long length)
{
    record(0);
    while (length > 0) {
        long written = CALL(write, OUTPUT, data, length);
        if (written > 0) {
            data += written;
            length -= written;
            offset += written;
        } else if (written == -ENOSPC || written == -EDQUOT || written == -EINTR) {
            pause_for(PAUSE); /* the programs wait, as one does that writes to the file itself */
        } else {
            return;
        }
    }
}

/* Return false if there is nothing now. Leave if nothing will come any more. */
static int take_output(void)
{
    static byte piece[PIECE];
    long length = CALL(read, MASTER, piece, PIECE);
    if (length == -EAGAIN || length == -EINTR)
        return 0;
    if (length <= 0)
        leave(); /* EIO: no process has the terminal any more */
    keep(piece, length);
    for (long i = 0; i < length; i++)
        show(piece[i]);
    return 1;
}

/* ---- Orders: 'k', a length (2 bytes), what is to be typed; 's' and a struct winsize; 'e': keep what is there, and end */

static void take_orders(void)
{
    static byte orders[ORDER], head[8], kind;
    static unsigned have, left;
    long length = CALL(read, ORDERS, orders, ORDER);
    for (long i = 0; i < length; i++) {
        byte c = orders[i];
        if (left) {
            typed[typed_to++] = c;
            left--;
        } else if (!kind) {
            kind = c;
            have = 0;
            if (kind == 'e') {
                while (take_output())
                    ;
                leave();
            }
        } else {
            head[have++] = c;
            if (kind == 'k' && have == 2) {
                left = head[0] | head[1] << 8;
                kind = 0;
            } else if (kind == 's' && have == 8) {
                CALL(ioctl, MASTER, TIOCSWINSZ, head);
                resized();
                record(1);
                kind = 0;
            }
        }
    }
}

__attribute__((noreturn, used)) void holder(void)
{
    CALL(close_range, 4, ~0u, 0); /* what the daemon has inherited and does not know */
    CALL(prctl, PR_SET_NAME, "sfad-holder", 0); /* else it is called after the descriptor of its image */
    resized();
    reset();
    offset = CALL(lseek, OUTPUT, 0, 2);
    recorded = CALL(lseek, TIMES, 0, 2);
    record(1);
    for (;;) {
        struct pollfd waits[2] = {{MASTER, POLLIN, 0}, {ORDERS, POLLIN, 0}};
        if (typed_to) {
            waits[0].events |= POLLOUT;
            waits[1].fd = -1;
        }
        CALL(poll, waits, 2, -1);
        if (waits[0].revents & (POLLIN | POLLHUP | POLLERR))
            take_output();
        if (waits[0].revents & POLLOUT)
            type();
        if (waits[1].revents & POLLIN && !typed_to) /* else there may be no room for what it brings */
            take_orders();
    }
}
__asm__(".globl _start\n"
        "_start:\n"
        "    and  $-16, %rsp\n"
        "    call holder\n");
