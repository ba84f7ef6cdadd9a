"""Parts of scripts that count attempts: which leases have begun, and which attempts are not charged."""
