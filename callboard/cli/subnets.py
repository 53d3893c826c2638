"""`subnet` and `policy`: groups of DIDs that share agents and policies.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

import typer

from callboard.cli.calling import calling_verb

subnets = typer.Typer(help="Groups that share agents and policies.", no_args_is_help=True)
policies = typer.Typer(help="Policies of subnets.", no_args_is_help=True)

calling_verb(
    subnets, "create", "create_subnet", "Create a subnet.", "name",
    options="member_dids policy_type description",
)  # fmt: skip
calling_verb(
    subnets, "list", "subnets", "List subnets.", options="member_did limit cursor",
    columns="id name policyType ownerDid",
)  # fmt: skip
calling_verb(subnets, "show", "subnet", "Show a subnet.", "subnet")
calling_verb(
    subnets, "delete", "remove_subnet", "Remove a subnet with its members and policies.", "subnet"
)
calling_verb(subnets, "join", "add_subnet_member", "Join a subnet.", "subnet did")
calling_verb(subnets, "leave", "remove_subnet_member", "Leave a subnet.", "subnet did")
calling_verb(subnets, "add", "add_subnet_member", "List a DID in a subnet.", "subnet did")
calling_verb(subnets, "remove", "remove_subnet_member", "Remove a DID from a subnet.", "subnet did")
calling_verb(
    policies, "create", "create_policy", "Add a policy to a subnet.", "subnet",
    options="policy_type! capability region limit_per_minute",
)  # fmt: skip
calling_verb(
    policies, "list", "policies", "List policies.", options="subnet_id limit=50 cursor",
    columns="id subnetId policyType capability region limitPerMinute",
)  # fmt: skip
calling_verb(policies, "remove", "remove_policy", "Remove a policy.", "policy")
