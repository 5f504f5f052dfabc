package config

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func itoa(i int) string { return strconv.Itoa(i) }

// decoder reads typed values out of the tree and notes what is wrong with each.
type decoder struct {
	faults *Faults
	env    func(string) (string, bool)
	// secretFiles are the files that secrets came from.
	secretFiles []string
}

// section is one mapping of the tree, and the path that leads to it.
type section struct {
	*decoder
	n    *node
	path string
}

func (s section) key(name string) string { return join(s.path, name) }

// where is the key's place, or that of the mapping that lacks it.
func (s section) where(name string) position {
	if v := s.n.get(name); v != nil {
		return v.at
	}
	if s.n != nil {
		return s.n.at
	}
	return position{1, 1}
}

func (s section) fault(name, message string) { s.faults.add(s.where(name), s.key(name), message) }

// sub is the mapping below a key; a missing one is empty.
func (s section) sub(name string) section {
	v := s.n.get(name)
	if v != nil && v.kind != mappingNode {
		s.fault(name, "want a mapping, not "+v.kind.String())
		v = nil
	}
	return section{decoder: s.decoder, n: v, path: s.key(name)}
}

// list is the mappings of a list.
func (s section) list(name string) []section {
	v := s.n.get(name)
	if v == nil {
		return nil
	}
	if v.kind != listNode {
		s.fault(name, "want a list, not "+v.kind.String())
		return nil
	}
	var out []section
	for i, item := range v.items {
		path := s.key(name) + "[" + itoa(i) + "]"
		if item.kind != mappingNode {
			s.faults.add(item.at, path, "want a mapping, not "+item.kind.String())
			continue
		}
		out = append(out, section{decoder: s.decoder, n: item, path: path})
	}
	return out
}

func (s section) has(name string) bool { return s.n.get(name) != nil }

// scalar returns a single value with its environment variables filled in; ok is false when it is missing or
// not a single value, or when a variable has no value.
func (s section) scalar(name string) (text string, asText, ok bool) {
	v := s.n.get(name)
	if v == nil {
		return "", false, false
	}
	return s.scalarOf(v, s.key(name))
}

func (s section) scalarOf(v *node, key string) (text string, asText, ok bool) {
	if v.kind != scalarNode {
		s.faults.add(v.at, key, "want a single value, not "+v.kind.String())
		return "", false, false
	}
	expanded, missing := expand(v.text, s.env)
	for _, variable := range missing {
		s.faults.add(v.at, key, "the environment variable "+variable+" isn't set, or empty")
	}
	if strings.Contains(reference.ReplaceAllString(v.text, ""), "${") {
		s.faults.add(v.at, key, "want ${NAME} or ${NAME:-default}")
		return "", false, false
	}
	// A value that comes from the environment is as good as one that stands in the file, quoted or not.
	return expanded, v.quoted && expanded == v.text, len(missing) == 0
}

var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}`)

// expand fills in ${NAME} and ${NAME:-default}. It works on single values after the file has been read, so a
// variable can't add keys. An empty variable counts as unset.
func expand(text string, env func(string) (string, bool)) (expanded string, missing []string) {
	expanded = reference.ReplaceAllStringFunc(text, func(match string) string {
		parts := reference.FindStringSubmatch(match)
		if value, ok := env(parts[1]); ok && value != "" {
			return value
		}
		if parts[2] == "" {
			missing = append(missing, parts[1])
		}
		return parts[3]
	})
	return expanded, missing
}

// looksOtherwise are plain scalars that YAML's versions disagree about, or that are numbers: as text they must be quoted.
var looksOtherwise = regexp.MustCompile(`^(?i:true|false|yes|no|on|off|null|~|[-+]?[0-9][0-9_]*(\.[0-9_]*)?(e[-+]?[0-9]+)?|0[xob].*|\.inf|\.nan)$`)

// text is a text value; otherwise is its default.
func (s section) text(name, otherwise string) string {
	text, asText, ok := s.scalar(name)
	if !ok {
		return otherwise
	}
	if !asText && looksOtherwise.MatchString(text) && s.n.get(name).text == text {
		s.fault(name, "want text; put it in quotes if that is what you mean")
		return otherwise
	}
	return text
}

// required is a text value that must be there and not be empty.
func (s section) required(name string) string {
	if !s.has(name) {
		s.fault(name, "missing")
		return ""
	}
	before := len(s.faults.list)
	text := s.text(name, "")
	if text == "" && len(s.faults.list) == before {
		s.fault(name, "must not be empty")
	}
	return text
}

// secret is a value that comes from name, or from the file that name_file names.
func (s section) secret(name string) Secret {
	fileKey := name + "_file"
	switch {
	case s.has(name) && s.has(fileKey):
		s.fault(fileKey, "give "+name+" or "+fileKey+", not both")
		return ""
	case s.has(fileKey):
		return s.secretFile(fileKey)
	case !s.has(name):
		s.fault(name, "missing; give it, best as ${VARIABLE}, or "+fileKey)
		return ""
	}
	return Secret(s.required(name))
}

// maxSecretFile bounds what is read, in bytes.
const maxSecretFile = 64 << 10

func (s section) secretFile(name string) Secret {
	path := s.required(name)
	if path == "" {
		return ""
	}
	s.secretFiles = append(s.secretFiles, path)
	file, err := os.Open(path) //nolint:gosec // the operator's own file
	if err != nil {
		s.fault(name, "can't be read: "+err.Error())
		return ""
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxSecretFile+1))
	value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case err != nil:
		s.fault(name, "can't be read: "+err.Error())
	case len(data) > maxSecretFile:
		s.fault(name, "the file is too long for a secret")
	case value == "":
		s.fault(name, "the file is empty")
	default:
		return Secret(value)
	}
	return ""
}

func (s section) boolean(name string, otherwise bool) bool {
	text, asText, ok := s.scalar(name)
	if !ok {
		return otherwise
	}
	if asText || text != "true" && text != "false" {
		s.fault(name, "want true or false")
		return otherwise
	}
	return text == "true"
}

var wholeNumber = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// number is a whole number from 1 to most. There is one spelling: 010 and 1_000 are refused, since readers disagree about them.
func (s section) number(name string, otherwise, most int64) int64 {
	text, asText, ok := s.scalar(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if asText || err != nil || !wholeNumber.MatchString(text) {
		s.fault(name, "want a whole number")
		return otherwise
	}
	if n < 1 || n > most {
		s.fault(name, "want 1 to "+strconv.FormatInt(most, 10))
		return otherwise
	}
	return n
}

func (s section) duration(name string, otherwise, least, most time.Duration) time.Duration {
	text, _, ok := s.scalar(name)
	if !ok {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		s.fault(name, "want a time such as 500ms, 10s or 1m")
		return otherwise
	}
	if d < least || d > most {
		s.fault(name, "want "+least.String()+" to "+most.String())
		return otherwise
	}
	return d
}

var sizeGrammar = regexp.MustCompile(`^([1-9][0-9]{0,9})(B|KiB|MiB|GiB)?$`)

func (s section) size(name string, otherwise, least, most int64) int64 {
	text, _, ok := s.scalar(name)
	if !ok {
		return otherwise
	}
	parts := sizeGrammar.FindStringSubmatch(text)
	if parts == nil {
		s.fault(name, "want a size such as 16KiB or 1MiB")
		return otherwise
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	n *= map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[parts[2]]
	if err != nil || n < least || n > most {
		s.fault(name, "want "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10)+" bytes")
		return otherwise
	}
	return n
}

// texts is a list of text values.
func (s section) texts(name string) []string {
	v := s.n.get(name)
	if v == nil {
		return nil
	}
	if v.kind != listNode {
		s.fault(name, "want a list, not "+v.kind.String())
		return nil
	}
	var out []string
	for i, item := range v.items {
		if text, _, ok := s.scalarOf(item, s.key(name)+"["+itoa(i)+"]"); ok {
			out = append(out, text)
		}
	}
	return out
}

// choice is one of a closed set. An unsupported one is known, and refused by name with a hint.
func choice[T ~string](s section, name string, otherwise T, values []T, unsupported map[T]string) T {
	text, _, ok := s.scalar(name)
	if !ok && s.has(name) {
		return otherwise
	}
	value := otherwise
	if ok {
		value = T(text)
	}
	if hint, known := unsupported[value]; known {
		said := string(value)
		if !ok {
			said += " (the default)"
		}
		s.faults.addUnsupported(s.where(name), s.key(name), ": "+said+hint)
		return value
	}
	if ok && !slices.Contains(values, value) {
		list := make([]string, 0, len(values))
		for _, v := range values {
			list = append(list, string(v))
		}
		s.fault(name, "want one of "+strings.Join(list, ", "))
		return otherwise
	}
	return value
}
