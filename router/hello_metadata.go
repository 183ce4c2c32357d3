package router

import (
	"bytes"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// Limits of the client's description of itself, in bytes.
const (
	maxMetadata = 512
	maxAppName  = 128
)

// greet takes what a hello says of the client. A description is given once in a connection's life (186); the same again is let pass.
func (c *Conn) greet(cmd bson.Raw) error {
	doc := bsoncore.Document(cmd)
	if v, err := doc.LookupErr("loadBalanced"); err == nil && isTrue(v) {
		c.loadBalanced = true // every listener may stand behind one
	}
	v, err := doc.LookupErr("client")
	if err != nil {
		return nil
	}
	meta, ok := v.DocumentOK()
	if !ok {
		return typeMismatch("client", v, "object")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.metadata != nil {
		if bytes.Equal(c.metadata, meta) {
			return nil
		}
		return wire.Errorf(wire.ClientMetadataCannotBeMutated, "The client metadata document may only be sent in the first hello")
	}
	if err := checkMetadata(meta); err != nil {
		return err
	}
	c.metadata = bytes.Clone(meta)
	c.isFrom(c.metadata)
	return nil
}

// isFrom notes whose connection it is.
func (c *Conn) isFrom(meta bson.Raw) {
	host := c.nc.RemoteAddr().String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	who := host + " " + string(meta)
	c.who.Store(&who)
}

func checkMetadata(meta bsoncore.Document) error {
	if len(meta) > maxMetadata {
		return wire.Errorf(wire.ClientMetadataDocumentTooLarge, "The client metadata document must be less then or equal to %d bytes", maxMetadata)
	}
	if app, err := meta.LookupErr("application"); err == nil {
		d, ok := app.DocumentOK()
		if !ok {
			return typeMismatch("client.application", app, "object")
		}
		if name, err := d.LookupErr("name"); err == nil {
			s, ok := name.StringValueOK()
			if !ok {
				return typeMismatch("client.application.name", name, "string")
			}
			if len(s) > maxAppName {
				return wire.Errorf(wire.ClientMetadataAppNameTooLarge, "The 'application.name' field must be less than or equal to %d bytes in length", maxAppName)
			}
		}
	}
	for _, path := range [][]string{{"driver"}, {"driver", "name"}, {"driver", "version"}, {"os"}, {"os", "type"}} {
		v, err := meta.LookupErr(path...)
		if err != nil {
			return wire.Errorf(wire.ClientMetadataMissingField, "Missing required field '%s' in the client metadata document", join(path))
		}
		want := "string"
		_, ok := v.StringValueOK()
		if len(path) == 1 {
			want = "object"
			_, ok = v.DocumentOK()
		}
		if !ok {
			return typeMismatch("client."+join(path), v, want)
		}
	}
	return nil
}

func join(path []string) string {
	if len(path) == 1 {
		return path[0]
	}
	return path[0] + "." + path[1]
}

// metadataText is a text of a client's description, for logs.
func metadataText(meta bson.Raw, path ...string) string {
	s, _ := bsoncore.Document(meta).Lookup(path...).StringValueOK()
	return s
}
