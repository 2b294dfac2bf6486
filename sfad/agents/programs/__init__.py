"""Agent programs: a file for each says all that is known of it.

`claude`, `codex`, `copilot`, `gemini`, `opencode`, `qwen`  what one program prints and saves, its
                options, its calls
`aider`, `jsonl`  the same of programs without session files
"""
