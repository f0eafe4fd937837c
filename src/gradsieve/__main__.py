"""``python -m gradsieve`` is the command."""

from gradsieve.cli import main

main()
