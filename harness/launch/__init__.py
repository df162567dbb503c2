"""Who starts ranks on which nodes. One file adds one engine; none of them imports torch."""
