package main

import "context"

func (b *bench) large(context.Context) error     { return nil }
func (b *bench) slow(context.Context) error      { return nil }
func (b *bench) idle(context.Context) error      { return nil }
func (b *bench) decisions(context.Context) error { return nil }
func (b *bench) real(context.Context) error      { return nil }
