"""`python -m rayka` is the `rayka` command."""

from rayka.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
