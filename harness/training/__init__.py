"""What a rank and the agent that forks it do: the measuring protocol and the correctness gate."""
