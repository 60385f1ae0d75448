"""What a study is asked to do: every option, once."""
