"""Prints the static memory estimate of common GraphSAGE configurations, or of one that you describe.

Run it with the project's environment: .venv/bin/python scripts/example_memory_estimation.py [--interactive]
"""

from __future__ import annotations

import click

from tuner import estimate_model_memory

COMMON = [
    ("Tiny", 32, 2),
    ("Small", 64, 2),
    ("Deeper", 64, 3),
    ("Deep", 64, 4),
    ("Medium", 128, 2),
    ("Wide and deep", 128, 3),
    ("Large", 256, 2),
    ("Very large", 256, 4),
]


@click.command()
@click.option("--interactive", is_flag=True, help="Ask for a configuration.")
@click.option("--num-users", default=943, show_default=True)
@click.option("--num-items", default=1682, show_default=True)
def main(interactive: bool, num_users: int, num_items: int) -> None:
    """Estimate what a GraphSAGE trial needs."""
    rows = COMMON
    if interactive:
        hidden_dim = click.prompt("hidden_dim", default=64, type=click.IntRange(1))
        num_layers = click.prompt("num_layers", default=2, type=click.IntRange(1))
        num_users = click.prompt("num_users", default=num_users, type=click.IntRange(1))
        num_items = click.prompt("num_items", default=num_items, type=click.IntRange(1))
        rows = [("Yours", hidden_dim, num_layers)]
    click.echo(f"{'configuration':<15}{'hidden_dim':>11}{'num_layers':>11}{'estimate':>11}")
    for name, hidden_dim, num_layers in rows:
        gb = estimate_model_memory(hidden_dim, num_layers, num_users, num_items)
        click.echo(f"{name:<15}{hidden_dim:>11}{num_layers:>11}{gb:>8.2f} GB")


if __name__ == "__main__":
    main()
