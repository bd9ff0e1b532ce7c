"""``python -m hpcbench``."""

from hpcbench.cli import main

if __name__ == "__main__":
    main()
