"""Mutation tests: `python -m tests.mutants` plants one defect at a time, and shows those that no
test notices.

- `parts.toml`: the modules, and the tests that must notice their defects
- `harmless.toml`: defects that no test can notice, and why
- `planting`: the defects that can be planted in a module
- `cage`: runs tests with one module replaced, where a defect can end no process and freeze no
  cgroup of others
"""
