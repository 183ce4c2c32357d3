package splitter

// MaxPartitionBytes is the size in bytes beyond which a partition of ns is split.
func (s *Splitter) MaxPartitionBytes(ns string) int64 {
	snap := s.cfg.Catalog.Snapshot()
	if n := snap.Collections[ns].MaxPartitionBytes; n > 0 {
		return n
	}
	if snap.MaxPartitionBytes > 0 {
		return snap.MaxPartitionBytes
	}
	return s.cfg.MaxPartitionBytes
}
