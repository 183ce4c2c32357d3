// Package shardway is the root of Shardway, a sharding proxy that speaks the MongoDB wire protocol.
//
// Data flows one way through the packages: cmd/proxy → router → (splitter, member) → (shardkey,
// catalog, partition, backend) → wire. docs/architecture.md says what lives where and why.
package shardway
