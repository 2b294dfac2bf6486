"""What runs use: their output and session files read, prices looked up, the kernel asked."""
