"""What a program uses of a library's GPU code: traces, and the packs that hold the rest."""
