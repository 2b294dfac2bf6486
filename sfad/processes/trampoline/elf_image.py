"""The trampoline for x86_64, a static program of some two hundred instructions, and the code with which `clone` starts it."""

import struct

_LOAD = 0x400000
_EM_X86_64 = 62
_X86_64 = """
000 48 89 e5              mov   rbp, rsp
003 31 ff                 xor   edi, edi
005 48 8b 75 10           mov   rsi, [rbp+16]       ; argv[1], octal digits
009 ac                    lodsb
00a 84 c0                 test  al, al
00c 74 08                 je    016
00e 83 e0 07              and   eax, 7
011 8d 3c f8              lea   edi, [rax+rdi*8]
014 eb f3                 jmp   009
016 6a 5f                 push  95                  ; umask(edi)
018 58                    pop   rax
019 0f 05                 syscall
01b 6a 01                 push  1                   ; stage = ATTACH
01d 5b                    pop   rbx
01e 6a 03                 push  3                   ; write(3, "0", 1)
020 5f                    pop   rdi
021 6a 30                 push  '0'
023 54                    push  rsp
024 5e                    pop   rsi
025 6a 01                 push  1
027 5a                    pop   rdx
028 6a 01                 push  1
02a 58                    pop   rax
02b 0f 05                 syscall
02d 59                    pop   rcx
02e 85 c0                 test  eax, eax
030 0f 88 f1 01 00 00     js    227
036 6a 03                 push  3                   ; stage = CLOSE
038 5b                    pop   rbx
039 6a 03                 push  3                   ; close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
03b 5f                    pop   rdi
03c 6a 04                 push  4
03e 5a                    pop   rdx
03f 83 ce ff              or    esi, -1
042 b8 b4 01 00 00        mov   eax, 436
047 0f 05                 syscall
049 85 c0                 test  eax, eax
04b 0f 88 d6 01 00 00     js    227
051 53                    push  rbx                 ; read(5, …, 1): 1, or the daemon has died
052 6a 05                 push  5
054 5f                    pop   rdi
055 54                    push  rsp
056 5e                    pop   rsi
057 6a 01                 push  1
059 5a                    pop   rdx
05a 31 c0                 xor   eax, eax
05c 0f 05                 syscall
05e 59                    pop   rcx
05f 83 f8 01              cmp   eax, 1
062 0f 85 ce 01 00 00     jne   236
068 80 f9 75              cmp   cl, 'u'             ; 'u': become a user first
06b 0f 85 f3 00 00 00     jne   164
071 6a 06                 push  6                   ; stage = BECOME
073 5b                    pop   rbx
074 48 81 ec 00 90 00 00  sub   rsp, 0x9000         ; rsp = the credentials, see `contract`
07b 48 89 e6              mov   rsi, rsp
07e ba 10 01 00 00        mov   edx, 272            ; read(5, rsp, 272)
083 31 c0                 xor   eax, eax
085 0f 05                 syscall
087 39 d0                 cmp   eax, edx
089 0f 85 a7 01 00 00     jne   236
08f 48 01 d6              add   rsi, rdx
092 8b 54 24 0c           mov   edx, [rsp+12]       ; read(5, rsp+272, 4*groups)
096 c1 e2 02              shl   edx, 2
099 31 c0                 xor   eax, eax
09b 0f 05                 syscall
09d 39 d0                 cmp   eax, edx
09f 0f 85 91 01 00 00     jne   236
0a5 8b 7c 24 0c           mov   edi, [rsp+12]       ; setgroups(groups, rsp+272)
0a9 6a 74                 push  116
0ab 58                    pop   rax
0ac 0f 05                 syscall
0ae 85 c0                 test  eax, eax
0b0 0f 88 71 01 00 00     js    227
0b6 48 8d 54 24 10        lea   rdx, [rsp+16]       ; prlimit64(0, 0 to 15, limit, 0)
0bb 31 f6                 xor   esi, esi
0bd 31 ff                 xor   edi, edi
0bf 45 31 d2              xor   r10d, r10d
0c2 b8 2e 01 00 00        mov   eax, 302
0c7 0f 05                 syscall
0c9 85 c0                 test  eax, eax
0cb 0f 88 56 01 00 00     js    227
0d1 48 83 c2 10           add   rdx, 16
0d5 ff c6                 inc   esi
0d7 83 fe 10              cmp   esi, 16
0da 75 e6                 jne   0c2
0dc 8b 7c 24 04           mov   edi, [rsp+4]        ; setresgid(gid, gid, gid)
0e0 89 fe                 mov   esi, edi
0e2 89 fa                 mov   edx, edi
0e4 6a 77                 push  119
0e6 58                    pop   rax
0e7 0f 05                 syscall
0e9 85 c0                 test  eax, eax
0eb 0f 88 36 01 00 00     js    227
0f1 8b 3c 24              mov   edi, [rsp]          ; setresuid(uid, uid, uid)
0f4 89 fe                 mov   esi, edi
0f6 89 fa                 mov   edx, edi
0f8 6a 75                 push  117
0fa 58                    pop   rax
0fb 0f 05                 syscall
0fd 85 c0                 test  eax, eax
0ff 0f 88 22 01 00 00     js    227
105 50                    push  rax                 ; capset(version 3, none)
106 50                    push  rax
107 50                    push  rax
108 48 89 e6              mov   rsi, rsp
10b 68 22 05 08 20        push  0x20080522
110 48 89 e7              mov   rdi, rsp
113 6a 7e                 push  126
115 58                    pop   rax
116 0f 05                 syscall
118 48 83 c4 20           add   rsp, 32
11c 85 c0                 test  eax, eax
11e 0f 88 03 01 00 00     js    227
124 6a 01                 push  1
126 5f                    pop   rdi
127 31 f6                 xor   esi, esi
129 b8 fa 00 00 00        mov   eax, 250            ; keyctl(KEYCTL_JOIN_SESSION_KEYRING, 0)
12e 0f 05                 syscall
130 83 f8 ff              cmp   eax, -1             ; EPERM and
133 74 0d                 je    142
135 83 f8 da              cmp   eax, -38            ; ENOSYS: the run has no keyrings either
138 74 08                 je    142
13a 85 c0                 test  eax, eax
13c 0f 88 e5 00 00 00     js    227
142 8b 74 24 08           mov   esi, [rsp+8]        ; no_new_privs?
146 85 f6                 test  esi, esi
148 74 1a                 je    164
14a 6a 26                 push  38                  ; prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
14c 5f                    pop   rdi
14d 31 d2                 xor   edx, edx
14f 45 31 d2              xor   r10d, r10d
152 45 31 c0              xor   r8d, r8d
155 b8 9d 00 00 00        mov   eax, 157
15a 0f 05                 syscall
15c 85 c0                 test  eax, eax
15e 0f 88 c3 00 00 00     js    227
164 6a 02                 push  2                   ; stage = ENTER
166 5b                    pop   rbx
167 48 8b 7d 18           mov   rdi, [rbp+24]       ; chdir(argv[2])
16b 6a 50                 push  80
16d 58                    pop   rax
16e 0f 05                 syscall
170 85 c0                 test  eax, eax
172 0f 88 af 00 00 00     js    227
178 6a 04                 push  4                   ; stage = EXEC
17a 5b                    pop   rbx
17b 48 8b 45 00           mov   rax, [rbp]
17f 4c 8d 7c c5 10        lea   r15, [rbp+rax*8+16] ; r15 = envp
184 4c 8d 65 20           lea   r12, [rbp+32]       ; r12 = &argv[3], the files
188 4d 89 e5              mov   r13, r12            ; r13 = what follows the empty one, ARGV
18b 49 8b 7d 00           mov   rdi, [r13]
18f 49 83 c5 08           add   r13, 8
193 80 3f 00              cmp   byte [rdi], 0
196 75 f3                 jne   18b
198 6a fe                 push  -2                  ; r14 = -ENOENT
19a 41 5e                 pop   r14
19c 49 8b 3c 24           mov   rdi, [r12]          ; execve(*r12, r13, r15)
1a0 80 3f 00              cmp   byte [rdi], 0
1a3 74 5b                 je    200
1a5 4c 89 ee              mov   rsi, r13
1a8 4c 89 fa              mov   rdx, r15
1ab 6a 3b                 push  59
1ad 58                    pop   rax
1ae 0f 05                 syscall
1b0 83 f8 f8              cmp   eax, -8             ; ENOEXEC
1b3 74 27                 je    1dc
1b5 49 83 c4 08           add   r12, 8              ; the next one, after
1b9 83 f8 fe              cmp   eax, -2             ; ENOENT,
1bc 74 de                 je    19c
1be 83 f8 ec              cmp   eax, -20            ; ENOTDIR,
1c1 74 d9                 je    19c
1c3 49 89 c6              mov   r14, rax            ; and, to be reported in the end, all but
1c6 83 f8 f9              cmp   eax, -7             ; E2BIG,
1c9 74 35                 je    200
1cb 83 f8 f5              cmp   eax, -11            ; EAGAIN,
1ce 74 30                 je    200
1d0 83 f8 f4              cmp   eax, -12            ; ENOMEM,
1d3 74 2b                 je    200
1d5 83 f8 e6              cmp   eax, -26            ; ETXTBSY
1d8 75 c2                 jne   19c
1da eb 24                 jmp   200
1dc 49 8b 04 24           mov   rax, [r12]          ; argv[0] = the file, after argv[-1] = SHELL
1e0 49 89 45 00           mov   [r13], rax
1e4 49 83 ed 08           sub   r13, 8
1e8 48 8b 7d 08           mov   rdi, [rbp+8]
1ec 49 89 7d 00           mov   [r13], rdi
1f0 4c 89 ee              mov   rsi, r13            ; execve(SHELL, r13, r15)
1f3 4c 89 fa              mov   rdx, r15
1f6 6a 3b                 push  59
1f8 58                    pop   rax
1f9 0f 05                 syscall
1fb 49 89 c6              mov   r14, rax
1fe eb 22                 jmp   222
200 41 83 fe fe           cmp   r14d, -2            ; after ENOENT: access(*file, F_OK)?
204 75 1e                 jne   224
206 4c 8d 65 20           lea   r12, [rbp+32]
20a 49 8b 3c 24           mov   rdi, [r12]
20e 80 3f 00              cmp   byte [rdi], 0
211 74 11                 je    224
213 31 f6                 xor   esi, esi
215 6a 15                 push  21
217 58                    pop   rax
218 0f 05                 syscall
21a 49 83 c4 08           add   r12, 8
21e 85 c0                 test  eax, eax
220 78 e8                 js    20a
222 ff c3                 inc   ebx                 ; stage = INTERPRET
224 4c 89 f0              mov   rax, r14
227 50                    push  rax                 ; write(4, {stage, -errno}, 16)
228 53                    push  rbx
229 6a 04                 push  4
22b 5f                    pop   rdi
22c 54                    push  rsp
22d 5e                    pop   rsi
22e 6a 10                 push  16
230 5a                    pop   rdx
231 6a 01                 push  1
233 58                    pop   rax
234 0f 05                 syscall
236 6a 7f                 push  127                 ; exit(127)
238 5f                    pop   rdi
239 6a 3c                 push  60
23b 58                    pop   rax
23c 0f 05                 syscall
"""
_CLONE = """
000 49 89 d0              mov   r8, rdx             ; arguments, size, table, report
003 41 89 c9              mov   r9d, ecx
006 b8 b3 01 00 00        mov   eax, 435            ; clone3(arguments, size)
00b 0f 05                 syscall
00d 48 85 c0              test  rax, rax
010 74 01                 je    013
012 c3                    ret
013 4c 89 c3              mov   rbx, r8             ; the child: rbx = the table
016 44 89 cd              mov   ebp, r9d
019 8b 03                 mov   eax, [rbx]          ; its next call
01b 48 8b 7b 08           mov   rdi, [rbx+8]
01f 48 8b 73 10           mov   rsi, [rbx+16]
023 48 8b 53 18           mov   rdx, [rbx+24]
027 4c 8b 53 20           mov   r10, [rbx+32]
02b 48 83 c3 28           add   rbx, 40
02f 0f 05                 syscall
031 48 85 c0              test  rax, rax
034 79 e3                 jns   019
036 83 7b dc 00           cmp   dword [rbx-36], 0   ; may it fail?
03a 75 dd                 jne   019
03c 50                    push  rax                 ; write(report, {stage, -errno}, 16)
03d 6a 07                 push  7
03f 89 ef                 mov   edi, ebp
041 54                    push  rsp
042 5e                    pop   rsi
043 6a 10                 push  16
045 5a                    pop   rdx
046 6a 01                 push  1
048 58                    pop   rax
049 0f 05                 syscall
04b 6a 7f                 push  127                 ; exit(127)
04d 5f                    pop   rdi
04e 6a 3c                 push  60
050 58                    pop   rax
051 0f 05                 syscall
"""
_MNEMONIC = 26


def _code(listing: str) -> bytes:
    return bytes.fromhex("".join(line[4:_MNEMONIC] for line in listing.strip().splitlines()))


_HEADERS = 64 + 2 * 56
CLONE_AT = _HEADERS + len(_code(_X86_64))
"""Where in the image the code is that `clone` calls."""


def image() -> bytes:
    """Return the ELF file: a header, two segments (code, and a stack that is not executable) and the instructions."""
    code = _code(_X86_64) + _code(_CLONE)
    size = _HEADERS + len(code)
    entry = _LOAD + _HEADERS
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, _EM_X86_64, 1, entry, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD, _LOAD, size, size, 0x1000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code
