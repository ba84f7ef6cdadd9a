"""Parts of scripts that count attempts: which leases have begun, and what is not charged."""
