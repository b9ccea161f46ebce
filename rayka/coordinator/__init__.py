"""What every coordinator shares (pure): results, timers, clock, record codec."""
