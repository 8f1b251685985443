"""One self-contained page of runs or of an audit: no network, opens from a file."""
