package splitter

// MaxPartitionBytes is the size in bytes beyond which a partition of ns is split.
func (s *Splitter) MaxPartitionBytes(ns string) int64 {
	if n := s.cfg.Catalog.Snapshot().Collections[ns].MaxPartitionBytes; n > 0 {
		return n
	}
	return s.cfg.MaxPartitionBytes
}
