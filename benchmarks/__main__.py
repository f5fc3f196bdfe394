"""`python -m benchmarks <problem>`."""

from benchmarks.extras import require_extras

if __name__ == "__main__":
    require_extras()
    from benchmarks.commands import main  # needs the extras

    main()
