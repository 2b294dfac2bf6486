"""The trampoline for x86_64: a static program of a few dozen instructions."""

import struct

_LOAD = 0x400000
_EM_X86_64 = 62
_X86_64 = """
000 31 ff             xor edi, edi
002 48 8b 74 24 10    mov rsi, [rsp+16]         ; argv[1], octal digits
007 ac                lodsb
008 84 c0             test al, al
00a 74 08             jz 014
00c 83 e0 07          and eax, 7
00f 8d 3c f8          lea edi, [rax+rdi*8]
012 eb f3             jmp 007
014 6a 5f             push 95                   ; umask(edi)
016 58                pop rax
017 0f 05             syscall
019 6a 01             push 1                    ; stage = ATTACH
01b 5b                pop rbx
01c 6a 03             push 3                    ; write(3, "0", 1)
01e 5f                pop rdi
01f 6a 30             push '0'
021 54                push rsp
022 5e                pop rsi
023 6a 01             push 1
025 5a                pop rdx
026 6a 01             push 1
028 58                pop rax
029 0f 05             syscall
02b 59                pop rcx
02c 85 c0             test eax, eax
02e 0f 88 f6 00 00 00 js 12a
034 ff c3             inc ebx                   ; stage = ENTER
036 48 8b 7c 24 18    mov rdi, [rsp+24]         ; chdir(argv[2])
03b 6a 50             push 80
03d 58                pop rax
03e 0f 05             syscall
040 85 c0             test eax, eax
042 0f 88 e2 00 00 00 js 12a
048 ff c3             inc ebx                   ; stage = CLOSE
04a 6a 03             push 3                    ; close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
04c 5f                pop rdi
04d 6a 04             push 4
04f 5a                pop rdx
050 83 ce ff          or esi, -1
053 b8 b4 01 00 00    mov eax, 436
058 0f 05             syscall
05a 85 c0             test eax, eax
05c 0f 88 c8 00 00 00 js 12a
062 ff c3             inc ebx                   ; stage = EXEC
064 53                push rbx                  ; read(5, …, 1): 1, or the daemon has died
065 6a 05             push 5
067 5f                pop rdi
068 54                push rsp
069 5e                pop rsi
06a 6a 01             push 1
06c 5a                pop rdx
06d 31 c0             xor eax, eax
06f 0f 05             syscall
071 59                pop rcx
072 83 f8 01          cmp eax, 1
075 0f 85 be 00 00 00 jne 139
07b 48 8b 04 24       mov rax, [rsp]            ; r15 = envp
07f 4c 8d 7c c4 10    lea r15, [rsp+rax*8+16]
084 4c 8d 64 24 20    lea r12, [rsp+32]         ; r12 = &argv[3], the files
089 4d 89 e5          mov r13, r12              ; r13 = what follows the empty one, ARGV
08c 49 8b 7d 00       mov rdi, [r13]
090 49 83 c5 08       add r13, 8
094 80 3f 00          cmp byte [rdi], 0
097 75 f3             jne 08c
099 6a fe             push -2                   ; r14 = -ENOENT
09b 41 5e             pop r14
09d 49 8b 3c 24       mov rdi, [r12]            ; execve(*r12, r13, r15)
0a1 80 3f 00          cmp byte [rdi], 0
0a4 74 5c             je 102
0a6 4c 89 ee          mov rsi, r13
0a9 4c 89 fa          mov rdx, r15
0ac 6a 3b             push 59
0ae 58                pop rax
0af 0f 05             syscall
0b1 83 f8 f8          cmp eax, -8               ; ENOEXEC
0b4 74 27             je 0dd
0b6 49 83 c4 08       add r12, 8                ; the next one, after
0ba 83 f8 fe          cmp eax, -2               ; ENOENT,
0bd 74 de             je 09d
0bf 83 f8 ec          cmp eax, -20              ; ENOTDIR,
0c2 74 d9             je 09d
0c4 49 89 c6          mov r14, rax              ; and, to be reported in the end, all but
0c7 83 f8 f9          cmp eax, -7               ; E2BIG,
0ca 74 36             je 102
0cc 83 f8 f5          cmp eax, -11              ; EAGAIN,
0cf 74 31             je 102
0d1 83 f8 f4          cmp eax, -12              ; ENOMEM,
0d4 74 2c             je 102
0d6 83 f8 e6          cmp eax, -26              ; ETXTBSY
0d9 75 c2             jne 09d
0db eb 25             jmp 102
0dd 49 8b 04 24       mov rax, [r12]            ; argv[0] = the file, after argv[-1] = SHELL
0e1 49 89 45 00       mov [r13], rax
0e5 49 83 ed 08       sub r13, 8
0e9 48 8b 7c 24 08    mov rdi, [rsp+8]
0ee 49 89 7d 00       mov [r13], rdi
0f2 4c 89 ee          mov rsi, r13              ; execve(SHELL, r13, r15)
0f5 4c 89 fa          mov rdx, r15
0f8 6a 3b             push 59
0fa 58                pop rax
0fb 0f 05             syscall
0fd 49 89 c6          mov r14, rax
100 eb 23             jmp 125
102 41 83 fe fe       cmp r14d, -2              ; after ENOENT: access(*file, F_OK)?
106 75 1f             jne 127
108 4c 8d 64 24 20    lea r12, [rsp+32]
10d 49 8b 3c 24       mov rdi, [r12]
111 80 3f 00          cmp byte [rdi], 0
114 74 11             je 127
116 31 f6             xor esi, esi
118 6a 15             push 21
11a 58                pop rax
11b 0f 05             syscall
11d 49 83 c4 08       add r12, 8
121 85 c0             test eax, eax
123 75 e8             jne 10d
125 ff c3             inc ebx                   ; stage = INTERPRET
127 4c 89 f0          mov rax, r14
12a 50                push rax                  ; write(4, {stage, -errno}, 16)
12b 53                push rbx
12c 6a 04             push 4
12e 5f                pop rdi
12f 54                push rsp
130 5e                pop rsi
131 6a 10             push 16
133 5a                pop rdx
134 6a 01             push 1
136 58                pop rax
137 0f 05             syscall
139 6a 7f             push 127                  ; exit(127)
13b 5f                pop rdi
13c 6a 3c             push 60
13e 58                pop rax
13f 0f 05             syscall
"""
_MNEMONIC = 22


def image() -> bytes:
    """Return the ELF file: a header, two segments (code, and a stack that is not executable) and the instructions."""
    code = bytes.fromhex("".join(line[4:_MNEMONIC] for line in _X86_64.strip().splitlines()))
    size = 64 + 2 * 56 + len(code)
    entry = _LOAD + size - len(code)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, _EM_X86_64, 1, entry, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD, _LOAD, size, size, 0x1000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code
