"""Operations on money: ledger entries, accounts, invoices, disputes, quotas."""

from __future__ import annotations
