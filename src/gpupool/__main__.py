"""``python -m gpupool``: the same command as ``gpupool``, for where no launcher is installed."""

from gpupool.cli.main import main

if __name__ == "__main__":
    main()
