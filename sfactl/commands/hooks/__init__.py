"""Show the hooks of the config, and try one."""
