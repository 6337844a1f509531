"""What an operator types besides `serve`: dump, scrub, backup, restore, sweep.

Always: the layout of the files is read and written through `storage` alone; a command says what it
did in JSON lines on stdout, and why it refused on stderr; 0 is done, 1 is damage or a refusal."""
