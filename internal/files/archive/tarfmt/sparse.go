package tarfmt

// dataMap reads the map of form 1.0 from the front of the data and checks it against the
// sizes.
func (r *Reader) dataMap(h *Header) error {
	var (
		block []byte
		read  int64
	)
	line := func() (int64, error) {
		var n int64
		for digits := 0; ; digits++ {
			if len(block) == 0 {
				if read += BlockSize; read > h.Size {
					return 0, damaged("the map of a sparse file is longer than its data")
				}
				if err := r.spend(BlockSize); err != nil {
					return 0, err
				}
				var err error
				if block, err = r.block(); err != nil {
					return 0, err
				}
			}
			c := block[0]
			block = block[1:]
			switch {
			case c == '\n' && digits > 0:
				return n, nil
			case c < '0' || c > '9' || digits >= 18:
				return 0, damaged("the map of a sparse file has a line that is not a number")
			}
			n = 10*n + int64(c-'0')
		}
	}
	count, err := line()
	if err != nil {
		return err
	}
	if count > MaxExtents {
		return over("pieces of a sparse file", MaxExtents)
	}
	for range count {
		var e Extent
		if e.Offset, err = line(); err != nil {
			return err
		}
		if e.Length, err = line(); err != nil {
			return err
		}
		h.Extents = append(h.Extents, e)
	}
	h.Size -= read
	return checkMap(h)
}

// oldMap reads the map of old GNU form from the header b and the blocks after it.
func (r *Reader) oldMap(h *Header, b []byte) (err error) {
	const (
		atEntries, inHeader = 386, 4
		atExtended          = 482
		atReal              = 483
		inBlock             = 21
		atMore              = 504
		field               = 12
	)
	if string(b[atMagic:atMagic+lenMagic]) != magicGNU {
		return damaged("a sparse file of GNU's form is in an archive of another")
	}
	if h.RealSize, err = number(b[atReal : atReal+field]); err != nil {
		return err
	}
	entries, more := b[atEntries:atEntries+inHeader*2*field], b[atExtended] != 0
	for {
		for ; len(entries) >= 2*field && entries[0] != 0; entries = entries[2*field:] {
			var e Extent
			if e.Offset, err = number(entries[:field]); err != nil {
				return err
			}
			if e.Length, err = number(entries[field : 2*field]); err != nil {
				return err
			}
			if len(h.Extents) == MaxExtents {
				return over("pieces of a sparse file", MaxExtents)
			}
			h.Extents = append(h.Extents, e)
		}
		if !more {
			return checkMap(h)
		}
		if err := r.spend(BlockSize); err != nil {
			return err
		}
		if b, err = r.block(); err != nil {
			return err
		}
		entries, more = b[:inBlock*2*field], b[atMore] != 0
	}
}

// checkMap checks that the pieces are in order, do not overlap, are within the file and add
// up to the data that follows.
func checkMap(h *Header) error {
	h.Sparse = true
	var end, sum int64
	for _, e := range h.Extents {
		if e.Offset < end || e.Length < 0 || e.Offset > h.RealSize || e.Length > h.RealSize-e.Offset {
			return damaged("the map of a sparse file does not fit it")
		}
		end = e.Offset + e.Length
		sum += e.Length // at most RealSize: the pieces do not overlap
	}
	if sum != h.Size {
		return damaged("the map of a sparse file has %d bytes and %d follow", sum, h.Size)
	}
	return nil
}
