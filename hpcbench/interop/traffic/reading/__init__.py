"""Records of communication that other programs and `hpcbench record` write, a file a format."""
