package rules

import "strings"

// spoken adds what the words of a command say where the knowledge has no answer: "delete cluster
// prod" changes a cluster, whatever the program. Such a command needs an approval anyway; this
// only names its effects. For a known program it adds only secrets that are shown and messages
// that are sent.
func (j *judge) spoken(s *segment, known bool) {
	v := vocabulary()
	var is verb
	var alone, about Set
	first := true
	hear := func(word string) {
		m := v[word]
		alone |= m.alone
		if first {
			return // a program's name says what it is, not what it does now
		}
		if is == noVerb {
			is = m.verb
		}
		about |= v[strings.TrimSuffix(word, "s")].about
	}
	heard := 0
	for i := range s.words {
		w := &s.words[i]
		text := w.Text
		first = i == 0
		if i == 0 && s.spec != nil || w.Dynamic || len(text) > 40 || strings.ContainsAny(text, "/=@. ") {
			continue
		}
		if strings.HasPrefix(text, "-") {
			if d := optionNamed(text); !known && d.does {
				s.addSet(d.caps, text)
			}
			continue
		}
		if heard++; heard > 4 {
			break
		}
		text = strings.ToLower(text)
		hear(text)
		if strings.ContainsAny(text, "-:_") {
			for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '-' || r == ':' || r == '_' }) {
				hear(part)
			}
		}
	}
	secret, tell := about&SetOf(SecretRead), about&SetOf(MessageSend)
	about &^= secret | tell
	switch is {
	case noVerb:
		about, tell = 0, 0
	case verbShow:
		s.addSet(secret, s.text)
		about, tell = 0, 0
	case verbTell:
		s.addSet(tell, s.text)
		about = 0
	case verbChange:
		s.addSet(tell, s.text)
		about &^= SetOf(LogTamper)
		if !known {
			s.addSet(secret, s.text)
		}
	case verbRemove:
		about &^= SetOf(Persistence)
	}
	if known {
		return
	}
	if about == 0 && tell == 0 {
		about = alone
	}
	s.addSet(about, s.text)
}

// mayBeSpoken are capabilities of programs whose tables list their changes but not everything
// that they show and send.
var mayBeSpoken = SetOf(CloudMutate, ClusterMutate, DatabaseMutate, AccountMutate)
