"""Share groups on the partition's leader: leases on records, one by one (KIP-932).

A share-partition is what one share group sees of one partition. `SharePartition` tracks which records are leased, to
whom and until when, and which are done; the log itself stays as it is.
"""
