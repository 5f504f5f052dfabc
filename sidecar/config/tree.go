package config

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// node is the part of YAML that a configuration file may use: mappings with text keys, lists, and plain or
// quoted scalars. Whatever could be read in two ways (anchors, merge keys, tags, a second document) isn't in it.
type node struct {
	kind   nodeKind
	at     position
	text   string // of a scalar, as written, without its quotes
	quoted bool   // a scalar that is text whatever it looks like
	fields []field
	items  []*node
}

type nodeKind int

const (
	scalarNode nodeKind = iota
	mappingNode
	listNode
	emptyNode // "key:" with nothing behind it, or null
)

func (k nodeKind) String() string {
	return [...]string{"a single value", "a mapping", "a list", "nothing"}[k]
}

type field struct {
	name  string
	at    position
	value *node
}

type position struct{ line, column int }

// get returns the value of a key, or nil.
func (n *node) get(name string) *node {
	if n == nil || n.kind != mappingNode {
		return nil
	}
	for _, f := range n.fields {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

// parse reads exactly one YAML document.
func parse(data []byte, faults *Faults) *node {
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		faults.add(syntaxPosition(err), "", "not valid YAML: "+syntaxReason(err))
		return nil
	}
	var documents []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			documents = append(documents, doc.Body)
		}
	}
	switch len(documents) {
	case 0:
		faults.add(position{1, 1}, "", "the file is empty")
		return nil
	case 1:
		return convert(documents[0], "", faults)
	}
	faults.add(at(documents[1]), "", "a second document (after ---): a configuration is one document")
	return nil
}

// convert turns the library's tree into ours, and notes what isn't allowed. Quoting no line of
// the file, since the neighbouring line may hold a secret.
func convert(n ast.Node, path string, faults *Faults) *node {
	switch v := n.(type) {
	case *ast.MappingNode:
		return convertMapping(v.Values, at(v), path, faults)
	case *ast.MappingValueNode:
		return convertMapping([]*ast.MappingValueNode{v}, at(v), path, faults)
	case *ast.SequenceNode:
		out := &node{kind: listNode, at: at(v)}
		for i, item := range v.Values {
			out.items = append(out.items, convert(item, fmt.Sprintf("%s[%d]", path, i), faults))
		}
		return out
	case *ast.StringNode:
		kind := v.GetToken().Type
		return &node{at: at(v), text: v.Value, quoted: kind == token.DoubleQuoteType || kind == token.SingleQuoteType}
	case *ast.LiteralNode:
		return &node{at: at(v), text: v.Value.Value, quoted: true}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return &node{at: at(v), text: strings.TrimSpace(v.GetToken().Value)}
	case *ast.NullNode:
		return &node{kind: emptyNode, at: at(v)}
	}
	faults.add(at(n), path, "anchors, aliases, tags and merge keys are not allowed; write the value out")
	return &node{kind: emptyNode, at: at(n)}
}

func convertMapping(values []*ast.MappingValueNode, where position, path string, faults *Faults) *node {
	out := &node{kind: mappingNode, at: where}
	if len(values) > 0 {
		out.at = at(values[0].Key)
	}
	seen := map[string]bool{}
	for _, pair := range values {
		key, ok := pair.Key.(*ast.StringNode)
		if !ok {
			faults.add(at(pair.Key), path, "a key must be plain text")
			continue
		}
		name := key.Value
		if seen[name] {
			faults.add(at(key), join(path, name), "the key stands here a second time")
			continue
		}
		seen[name] = true
		out.fields = append(out.fields, field{name: name, at: at(key), value: convert(pair.Value, join(path, name), faults)})
	}
	return out
}

func at(n ast.Node) position {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return position{t.Position.Line, t.Position.Column}
	}
	return position{1, 1}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
