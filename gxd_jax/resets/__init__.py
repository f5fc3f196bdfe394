"""What every method that resets units or weights does; `engine` is one update, step by step."""
