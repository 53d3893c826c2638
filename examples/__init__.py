"""Programs that use Callboard, each runnable as it stands."""
