"""Operations on money: the ledger, accounts, invoices, disputes, quotas."""

from __future__ import annotations
