package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cast"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Flags adds a flag for every key to fs.
func Flags(fs *pflag.FlagSet) {
	def := reflect.ValueOf(Default())
	for _, k := range keys() {
		value := def.FieldByIndex(k.index)
		help := fmt.Sprintf("%s [%s]", k.help, k.envName())
		switch v := value.Interface().(type) {
		case string:
			fs.String(k.flagName(), v, help)
		case int:
			fs.Int(k.flagName(), v, help)
		case bool:
			fs.Bool(k.flagName(), v, help)
		case time.Duration:
			fs.Duration(k.flagName(), v, help)
		case Bytes:
			fs.Var(&v, k.flagName(), help)
		case map[string]string:
			fs.StringArray(k.flagName(), nil, "ID=URI, repeated. "+help+" (there, separated by blanks)")
		case map[string]Collection:
			fs.StringArray(k.flagName(), nil, "DB.COLLECTION=KEY, repeated. "+help+" (there, separated by blanks)")
		default:
			panic("BUG: a key of type " + k.typ.String())
		}
	}
}

// Load reads the file (none if path is empty), the environment and the flags that Flags made, and
// validates the result. All errors are reported at once.
func Load(path string, fs *pflag.FlagSet) (Config, error) {
	v := viper.New()
	f := file{}
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return Config{}, err
		}
		if f, err = parse(text); err != nil {
			return Config{}, fmt.Errorf("%s: %w", path, err)
		}
		if err := v.MergeConfigMap(f.scalars); err != nil {
			return Config{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	c := Default()
	c.Backends, c.Collections = f.backends, f.collections
	var errs []error
	if err := CheckEnvironment(os.Environ()); err != nil {
		errs = append(errs, err)
	}
	for _, k := range keys() {
		if err := errors.Join(v.BindEnv(k.path, k.envName()), v.BindPFlag(k.path, fs.Lookup(k.flagName()))); err != nil {
			return Config{}, err
		}
		if err := k.fill(&c, v); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// fill brings the key's value from v to c.
func (k key) fill(c *Config, v *viper.Viper) error {
	raw := v.Get(k.path)
	field := reflect.ValueOf(c).Elem().FieldByIndex(k.index)
	var value any
	var err error
	switch {
	case k.isMap():
		return k.fillMap(c, raw)
	case k.typ == durationType:
		value, err = toDuration(raw)
	case k.typ == bytesType:
		value, err = toBytes(raw)
	case k.typ.Kind() == reflect.Int:
		value, err = cast.ToIntE(raw)
	case k.typ.Kind() == reflect.Bool:
		value, err = cast.ToBoolE(raw)
	default:
		value, err = cast.ToStringE(raw)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	field.Set(reflect.ValueOf(value))
	return nil
}

// toDuration wants a unit: a bare 5 might be meant as seconds or as milliseconds.
func toDuration(raw any) (time.Duration, error) {
	if d, ok := raw.(time.Duration); ok {
		return d, nil
	}
	text := fmt.Sprint(raw)
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: write a number with its unit, as 500ms, 10s, 30m or 1h", text)
	}
	return d, nil
}

func toBytes(raw any) (Bytes, error) {
	if b, ok := raw.(*Bytes); ok {
		return *b, nil
	}
	return ParseBytes(fmt.Sprint(raw))
}

// fillMap takes entries from flags or the environment; either replaces what the file says.
func (k key) fillMap(c *Config, raw any) error {
	var entries []string
	switch list := raw.(type) {
	case []string:
		entries = list
	case string:
		entries = strings.Fields(list)
	}
	if len(entries) == 0 {
		return nil
	}
	named := map[string]string{}
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" || value == "" {
			return fmt.Errorf("--%s: %q is not of the form NAME=VALUE", k.flagName(), entry)
		}
		if _, twice := named[name]; twice {
			return fmt.Errorf("--%s: %s is given twice", k.flagName(), name)
		}
		named[name] = value
	}
	if k.path == "backends" {
		c.Backends = named
		return nil
	}
	c.Collections = map[string]Collection{}
	for ns, field := range named {
		c.Collections[ns] = Collection{Key: field}
	}
	return nil
}
