package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Fault is one thing wrong with a configuration file.
type Fault struct {
	File         string
	Line, Column int
	Key          string // dotted path, such as guards[0].mark.table; empty for the file as a whole
	Message      string // no value of the file stands in it, except the names that the file gives to its parts
	// Unsupported is set when the key or value is a known one whose part isn't in this version. The message
	// then holds the key.
	Unsupported bool
}

// Error gives file:line:column: key: message.
func (f Fault) Error() string {
	text := fmt.Sprintf("%s:%d:%d: ", f.File, f.Line, f.Column)
	if f.Key != "" && !f.Unsupported {
		text += f.Key + ": "
	}
	return text + f.Message
}

// Faults are all the things wrong with a file, in the order of its lines.
type Faults struct {
	file string
	list []Fault
}

// List returns the faults in the order of the file.
func (f *Faults) List() []Fault { return slices.Clone(f.list) }

// Error gives one fault a line.
func (f *Faults) Error() string {
	lines := make([]string, 0, len(f.list))
	for _, fault := range f.list {
		lines = append(lines, fault.Error())
	}
	return strings.Join(lines, "\n")
}

func (f *Faults) add(where position, key, message string) {
	f.list = append(f.list, Fault{File: f.file, Line: where.line, Column: where.column, Key: key, Message: message})
}

func (f *Faults) addUnsupported(where position, key, hint string) {
	f.add(where, key, "unsupported in this version: "+key+hint)
	f.list[len(f.list)-1].Unsupported = true
}

// err returns nil when there is no fault.
func (f *Faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b Fault) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column, strings.Compare(a.Key, b.Key), strings.Compare(a.Message, b.Message))
	})
	f.list = slices.Compact(f.list)
	return f
}

// syntaxPosition and syntaxReason take the parts of a parser's error without the lines that it quotes.
func syntaxPosition(err error) position {
	if syntax, ok := errors.AsType[yaml.Error](err); ok && syntax.GetToken() != nil && syntax.GetToken().Position != nil {
		p := syntax.GetToken().Position
		return position{p.Line, p.Column}
	}
	return position{1, 1}
}

var quotedText = regexp.MustCompile(`"[^"]{2,}"`)

func syntaxReason(err error) string {
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		return quotedText.ReplaceAllString(syntax.GetMessage(), "…")
	}
	return "the parser can't read it"
}
