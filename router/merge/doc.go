// Package merge makes one answer of what several partitions answered, without any network: order, projections that
// hide a sort field, grouping, counting. Its inputs are documents; where they come from is the router's affair.
package merge
