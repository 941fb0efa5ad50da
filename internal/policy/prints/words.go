package prints

import (
	"strings"
	"sync"
)

// wordList is a closed list of names, each with a letter behind a colon that says what may
// follow: f the literal name of a file, l that of a library, e that of a variable of the
// environment, d a dot; n counts or repeats, k is a keyword behind which a value stands. It is
// read when it is first asked: most processes never do.
type wordList struct {
	text  string
	once  sync.Once
	kinds map[string]byte
}

func words(texts ...string) *wordList { return &wordList{text: strings.Join(texts, " ")} }

// kind returns the letter of a name, w if it has none, 0 if it is not in the list.
func (l *wordList) kind(name string) byte {
	l.once.Do(func() {
		l.kinds = map[string]byte{}
		for one := range strings.FieldsSeq(l.text) {
			kind := byte('w')
			if at := len(one) - 2; at > 0 && one[at] == ':' && one[at-1] != ':' {
				one, kind = one[:at], one[at+1]
			}
			l.kinds[one] = kind
		}
	})
	return l.kinds[name]
}

// Of returns the language of an interpreter, nil for one that is not read here.
func Of(program string) *Language {
	switch strings.TrimRight(program, "0123456789.-") {
	case "python", "pypy":
		return pythonLanguage
	case "node", "nodejs":
		return javascriptLanguage
	case "perl":
		return perlLanguage
	case "ruby", "jruby":
		return rubyLanguage
	case "php":
		return phpLanguage
	case "lua", "luajit":
		return luaLanguage
	case "R", "Rscript":
		return rLanguage
	case "julia":
		return juliaLanguage
	case "elixir":
		return elixirLanguage
	case "erl":
		return erlangLanguage
	}
	return nil
}

// usualNames are names that variables have and that no language gives to what it runs.
var usualNames = words(`acc arr attr base body cfg chunk cnt col cols conf config count ctx cur data day dct deps desc dic dirs doc docs elem entry
	fields file files fname found freq hit idx info inp item items job jobs key keys kind label labels left level lhs line lines lst matched meta msg name names
	node nodes num nums obj objs out output parts path paths pkg pkgs pod pods point prefix prev pts rec recs rep_ res resp result results rhs right row rows
	sec seg sep seq size spec src stats status step str_ sub suffix sum_ tag tags text the_ title tok total totals user users val value values vals ver
	vers version word words xml year mon hour mins secs msgs tmp tbl rev ent ents svc svcs cert certs host hosts lock manifest`)

var (
	pythonLibraries = words(`json sys platform os ssl site sysconfig datetime time math cmath statistics decimal fractions random string re textwrap collections itertools
		functools operator pprint csv locale calendar uuid hashlib zlib binascii base64 struct socket multiprocessing threading glob shutil tomllib
		plistlib configparser html urllib unicodedata ipaddress keyword this token enum types inspect gc resource zoneinfo sqlite3 bz2 lzma
		readline curses tkinter ensurepip distutils importlib email heapq bisect array copy codecs secrets errno signal fnmatch difflib stat pwd grp
		numpy pandas scipy matplotlib sklearn torch tensorflow jax requests yaml django flask fastapi pydantic sqlalchemy setuptools pip
		wheel cryptography OpenSSL boto3 botocore psycopg2 redis celery cv2 PIL transformers click jinja2 lxml bs4 pytest ansible docker
		kubernetes urllib3 certifi aiohttp httpx pkg_resources packaging attr six tqdm rich typer toml black`)
	// What of other people's is loaded may be asked for its version and no more.
	pythonForeign = words(`numpy pandas scipy matplotlib sklearn torch tensorflow jax requests yaml django flask fastapi pydantic sqlalchemy setuptools pip
		wheel cryptography OpenSSL boto3 botocore psycopg2 redis celery cv2 PIL transformers click jinja2 lxml bs4 pytest ansible docker
		kubernetes urllib3 certifi aiohttp httpx pkg_resources packaging attr six tqdm rich typer toml black`)
	pythonForeignNames = words(`print import as __version__ __file__ __path__ VERSION version get_version cuda is_available device_count get_device_name sys path
		stdin stdout read safe_load open json dumps where show_versions str len type list sorted keys indent`)
	pythonNames = words(`import from:k as:k for:k in:k if:k else:k elif:k not:k and:k or:k is:k return:k lambda:k None True False with:k pass try:k except:k finally:k continue break yield:k
		assert:k del_ print len sorted sum min max abs round str int float bool bytes list dict set tuple repr hex oct bin ord chr range:n zip map filter any all
		enumerate reversed isinstance type id next hash divmod format dir open:f slice frozenset complex Exception ValueError KeyError IndexError TypeError
		json load loads dumps dump sys version version_info path stdin stdout stderr read readline readlines maxsize byteorder executable prefix base_prefix exec_prefix argv
		platform getdefaultencoding getfilesystemencoding getsizeof implementation builtin_module_names flags exit hexversion float_info int_info abiflags
		cache_tag name machine node release system processor python_version python_implementation python_compiler python_build uname architecture mac_ver libc_ver
		freedesktop_os_release platform_ os getcwd cpu_count getpid getppid getuid geteuid getgid getlogin getloadavg uname_ environ:e getenv:e sep linesep pathsep
		curdir exists:f isfile:f isdir:f getsize:f getmtime:f basename dirname splitext join abspath realpath expanduser normpath relpath listdir:f stat:f st_size
		st_mtime st_mode sched_getaffinity sysconf sysconf_names confstr ssl OPENSSL_VERSION OPENSSL_VERSION_INFO get_default_verify_paths HAS_TLSv1_3 HAS_SNI HAS_ALPN cafile
		capath openssl_cafile site getsitepackages getusersitepackages USER_BASE USER_SITE ENABLE_USER_SITE sysconfig get_paths get_path get_platform get_python_version
		get_config_var get_config_vars get_scheme_names datetime date time timedelta timezone now utcnow today fromtimestamp utcfromtimestamp fromisoformat isoformat
		strftime strptime timestamp total_seconds days seconds microseconds utc replace astimezone isocalendar weekday isoweekday toordinal fromordinal day month
		year hour minute second ctime gmtime localtime mktime perf_counter monotonic process_time tzname math sqrt pi e_ log log2 log10 exp floor ceil trunc gcd lcm pow_ hypot
		sin cos tan radians degrees fsum prod comb_ statistics mean median mode stdev pstdev variance quantiles decimal Decimal fractions Fraction limit_denominator
		random randint choice sample uniform string ascii_letters ascii_lowercase ascii_uppercase digits punctuation re match search findall finditer split sub
		fullmatch group groups groupdict compile_ escape IGNORECASE MULTILINE I M textwrap wrap fill indent dedent shorten collections Counter most_common OrderedDict
		defaultdict namedtuple deque itertools groupby chain from_iterable islice takewhile dropwhile accumulate zip_longest functools operator itemgetter
		pprint pp csv reader DictReader fieldnames delimiter locale getpreferredencoding getlocale calendar month_ calendar_ isleap monthrange uuid uuid1 uuid4
		hashlib md5 sha1 sha256 sha512 new_ hexdigest digest algorithms_available algorithms_guaranteed zlib crc32 adler32 binascii hexlify unhexlify base64 b64encode b64decode
		urlsafe_b64encode urlsafe_b64decode b32encode b32decode struct calcsize pack unpack socket gethostname getfqdn multiprocessing threading active_count glob:f
		shutil which disk_usage:f get_terminal_size tomllib plistlib configparser html escape unescape urllib parse quote unquote quote_plus unquote_plus urlparse
		urlsplit parse_qs parse_qsl urlencode netloc scheme hostname port query fragment unicodedata normalize category ipaddress ip_address ip_network
		ip_interface num_addresses hosts subnets prefixlen network_address broadcast_address netmask is_private overlaps supernet hostmask version_ keyword kwlist gc
		get_count get_stats resource getrusage getrlimit RUSAGE_SELF ru_maxrss RLIMIT_NOFILE zoneinfo available_timezones ZoneInfo sqlite3 sqlite_version importlib metadata
		distributions requires heapq nlargest nsmallest bisect secrets token_hex token_urlsafe errno errorcode difflib unified_diff ndiff stat pwd grp getpwuid pw_name pw_dir
		keys values items get upper lower strip lstrip rstrip splitlines startswith endswith find rfind index count join partition rpartition title capitalize
		zfill center ljust rjust isdigit isalpha isalnum isupper islower encode decode hex_ fromhex to_bytes from_bytes bit_length is_integer as_integer_ratio
		append extend update setdefault union intersection difference issubset issuperset copy encoding errors indent sort_keys ensure_ascii separators default_ file end key reverse
		start flush strict width __version__ __file__ __doc__ __name__ __path__ VERSION safe_load is_available device_count get_device_name get_version show_versions cuda where write`)

	javascriptLibraries = words(`os path fs url util crypto v8 zlib querystring assert events punycode buffer string_decoder module`)
	javascriptNames     = words(`const:k let:k var:k of:k in:k for:k if:k else:k return:k typeof:k new:k true false null undefined NaN Infinity void:k
		console log error table dir info warn require:l JSON parse stringify Object keys values entries fromEntries assign_ Array isArray from isInteger isNaN Number
		String Boolean Math max min floor ceil round abs sqrt pow_ random trunc sign log2 log10 PI Date now toISOString toLocaleString toLocaleDateString
		toLocaleTimeString toString toUTCString toJSON getTime getFullYear getMonth getDate getDay getHours getMinutes getSeconds getTimezoneOffset UTC
		Intl DateTimeFormat resolvedOptions timeZone locale NumberFormat format supportedValuesOf parseInt parseFloat encodeURIComponent decodeURIComponent encodeURI
		decodeURI escape unescape atob btoa Buffer alloc_ byteLength URL URLSearchParams searchParams href hostname host pathname port protocol hash search origin get has
		getAll Set Map BigInt MAX_SAFE_INTEGER MAX_VALUE EPSILON process:d version versions node v8 uv openssl zlib modules napi unicode icu ares
		llhttp http_parser brotli nghttp2 cldr tz platform arch argv execPath execArgv pid ppid uptime memoryUsage heapUsed heapTotal rss external cwd title hrtime
		bigint release lts name features config variables exit stdout stderr stdin isTTY columns rows write env:e cpuUsage resourceUsage getuid getgid geteuid
		allowedNodeEnvironmentFlags os cpus model speed totalmem freemem type endianness networkInterfaces loadavg homedir tmpdir userInfo username EOL machine
		constants_ path join resolve basename dirname extname relative normalize sep delimiter isAbsolute fs readFileSync:f readdirSync:f existsSync:f statSync:f
		lstatSync:f realpathSync:f size mtime isFile isDirectory url fileURLToPath pathToFileURL util inspect crypto createHash update digest randomBytes randomUUID getHashes getCiphers getCurves
		randomInt module builtinModules paths globalPaths getHeapStatistics heap_size_limit total_heap_size length map filter reduce sort reverse slice splice_ concat
		indexOf lastIndexOf includes find findIndex some every forEach flat flatMap push join split trim trimStart trimEnd toUpperCase toLowerCase replace
		replaceAll match matchAll test startsWith endsWith substring substr charAt charCodeAt codePointAt padStart padEnd repeat:n at localeCompare toFixed toPrecision add
		delete_ size dependencies devDependencies peerDependencies optionalDependencies scripts engines workspaces exports_ main module_ license author description
		compilerOptions target strict packages lockfileVersion homepage repository keywords bin files private resolutions overrides paths baseUrl rootDir outDir`)

	perlNames = words(`print:k printf:k say:k if:k unless:k and:k or:k not:k for:k foreach:k while:k until_ else:k elsif:k return:k my our local split:k grep:k map:k join:k sort:k
		reverse:k keys values each length substr index rindex lc uc lcfirst ucfirst sprintf:k scalar:k defined:k exists:k int abs sqrt sin cos atan2 exp log hex oct
		ord chr push:k pop shift splice_ wantarray undef next last redo_ BEGIN END eq:k ne:k lt:k gt:k le:k ge:k cmp:k x:n xor:k chomp chop time localtime:k gmtime:k
		times pos quotemeta rand srand ref delete STDIN STDOUT STDERR ARGV INC_ ENV_ use:k no_ strict warnings feature utf8 POSIX strftime floor ceil fmod mktime
		List::Util sum sum0 max min first shuffle uniq reduce maxstr minstr product any all none JSON::PP JSON JSON::XS decode_json encode_json to_json from_json Data::Dumper Dumper
		Config Time::Local timelocal timegm Time::HiRes Time::Piece Scalar::Util looks_like_number blessed reftype Encode decode_utf8 encode_utf8 MIME::Base64
		encode_base64 decode_base64 Digest::MD5 md5_hex Digest::SHA sha1_hex sha256_hex sha512_hex Sys::Hostname hostname File::Basename basename dirname
		fileparse Cwd getcwd cwd Text::Wrap wrap Text::ParseWords shellwords URI::Escape uri_escape uri_unescape HTML::Entities decode_entities encode_entities
		List::MoreUtils Math::BigInt_ Socket inet_ntoa inet_aton_ pack unpack vec sprintf bytes integer bigint bignum lib_ version exit die:k warn:k DBI DBD::mysql DBD::Pg LWP LWP::UserAgent
		Net::SSLeay IO::Socket::SSL Moose Mojolicious Dancer2 XML::LibXML XML::Parser XML::Simple YAML YAML::XS Test::More Getopt::Long Storable DateTime DB_File GD Tk
		Term::ReadLine Crypt::SSLeay JSON::MaybeXS Try::Tiny Perl::Critic ExtUtils::MakeMaker Module::CoreList HTTP::Tiny Date::Parse Date::Calc Template CGI Image::Magick
		Term::ANSIColor Compress::Zlib Archive::Zip Archive::Tar Net::DNS Net::LDAP Text::CSV Text::CSV_XS Devel::Peek Spreadsheet::WriteExcel`)

	rubyLibraries = words(`json yaml psych date time set pp csv digest digest/md5 digest/sha1 digest/sha2 openssl securerandom base64 etc rbconfig uri socket bigdecimal ostruct
		stringio prime benchmark forwardable zlib strscan erb rexml/document tempfile_ English matrix ipaddr shellwords`)
	rubyNames = words(`puts print p pp printf:k require:l if:k unless:k and:k or:k not:k else:k elsif:k end:k do:k then:k return:k nil true false in:k self_ BEGIN END next
		RUBY_VERSION RUBY_PLATFORM RUBY_ENGINE RUBY_ENGINE_VERSION RUBY_PATCHLEVEL RUBY_RELEASE_DATE RUBY_DESCRIPTION RUBY_COPYRIGHT RUBY_REVISION Gem path dir platforms
		ruby_version default_dir user_dir user_home loaded_specs ruby VERSION Version rubygems_version Specification find_by_name gem_dir full_name version name default_bindir
		sources host JSON parse generate pretty_generate YAML Psych safe_load safe_load_file LIBYAML_VERSION File read:f readlines:f exist?:f file?:f directory?:f
		size? mtime:f basename extname dirname expand_path STDIN STDOUT ARGF ARGV each_line each_with_index gets chomp strip lstrip rstrip split join map each select reject sort
		sort_by uniq reverse first last min max sum count size length keys values key? value? fetch dig to_s to_i to_f to_a to_h to_sym to_json to_yaml inspect
		include? empty? nil? any? all? none? start_with? end_with? match match? scan sub gsub tr squeeze upcase downcase capitalize swapcase ljust rjust center
		zip flatten compact group_by tally each_slice each_cons take drop take_while drop_while find find_all reduce_ inject_ transform_values transform_keys partition
		min_by max_by flat_map filter filter_map sum_ index rindex chars bytes lines ord chr hex oct round floor ceil abs divmod digits gcd lcm times:n upto:n
		downto:n step:n rand Random Time now at utc localtime strftime iso8601 year month day hour minute second wday yday zone Date today DateTime Etc getlogin
		nprocessors uname getpwuid RbConfig CONFIG Encoding default_external default_internal name_list encoding force_encoding valid_encoding? encode Dir pwd glob:f entries:f home
		children:f Socket gethostname OpenSSL OPENSSL_VERSION OPENSSL_LIBRARY_VERSION SSL Digest MD5 SHA1 SHA256 SHA512 hexdigest SecureRandom uuid alphanumeric random_number Base64
		encode64 decode64 strict_encode64 strict_decode64 urlsafe_encode64 urlsafe_decode64 CSV headers URI host port query scheme encode_www_form_component
		decode_www_form_component Integer Float String Array_ Hash_ Comparable Math sqrt log log2 log10 PI sin cos pow_ ENV:e exit freeze frozen? class ancestors
		is_a? respond_to? RUBYOPT_ LOADED_FEATURES LOAD_PATH Prime prime? IPAddr to_range json yaml psych date time set csv digest openssl securerandom base64 etc
		rbconfig uri bigdecimal stringio prime matrix ipaddr`)

	phpNames = words(`echo:k print:k print_r var_dump var_export printf:k sprintf PHP_VERSION PHP_EOL PHP_OS PHP_OS_FAMILY PHP_SAPI PHP_BINARY PHP_INT_MAX PHP_INT_SIZE PHP_MAJOR_VERSION
		PHP_MINOR_VERSION PHP_RELEASE_VERSION PHP_VERSION_ID PHP_EXTRA_VERSION PHP_ZTS PHP_DEBUG PHP_MAXPATHLEN PHP_EXTENSION_DIR PHP_PREFIX PHP_BINDIR PHP_LIBDIR PHP_SYSCONFDIR
		PHP_CONFIG_FILE_PATH PHP_CONFIG_FILE_SCAN_DIR PHP_FLOAT_EPSILON DIRECTORY_SEPARATOR PATH_SEPARATOR OPENSSL_VERSION_TEXT OPENSSL_VERSION_NUMBER PCRE_VERSION LIBXML_DOTTED_VERSION
		ICONV_VERSION INTL_ICU_VERSION SODIUM_LIBRARY_VERSION GD_VERSION true false null TRUE FALSE NULL if:k else:k elseif:k foreach:k for:k as:k and:k or:k return:k exit die
		phpversion php_uname php_sapi_name php_ini_loaded_file php_ini_scanned_files zend_version ini_get ini_get_all get_cfg_var get_loaded_extensions
		get_extension_funcs extension_loaded function_exists class_exists method_exists defined constant get_defined_functions get_declared_classes
		get_class_methods get_include_path set_time_limit_ sys_get_temp_dir memory_get_usage memory_get_peak_usage getmypid getmyuid get_current_user gethostname
		sys_getloadavg disk_free_space:f disk_total_space:f getcwd getenv:e opcache_get_status opcache_get_configuration apcu_cache_info gd_info curl_version openssl_get_cipher_methods
		openssl_get_md_methods openssl_get_cert_locations hash_algos hash hash_hmac_algos mb_list_encodings mb_internal_encoding stream_get_wrappers stream_get_transports
		stream_get_filters timezone_identifiers_list date_default_timezone_get password_get_info pdo_drivers json_encode json_decode
		json_last_error json_last_error_msg JSON_PRETTY_PRINT JSON_UNESCAPED_SLASHES JSON_UNESCAPED_UNICODE count strlen mb_strlen implode explode join array_keys array_values
		array_merge array_unique array_sum array_slice array_reverse array_key_exists array_column array_flip in_array sort rsort asort ksort natsort max min abs
		floor ceil round sqrt pow_ intdiv intval floatval strval boolval number_format bin2hex hex2bin_ dechex hexdec bindec decbin octdec decoct base_convert md5 sha1
		crc32 base64_encode base64_decode urlencode urldecode rawurlencode rawurldecode http_build_query parse_url htmlspecialchars html_entity_decode strtoupper
		strtolower ucfirst ucwords trim ltrim rtrim substr strpos strrpos str_replace str_contains str_starts_with str_ends_with str_pad strrev ord chr nl2br wordwrap
		preg_match preg_match_all preg_quote preg_split date gmdate time microtime strtotime mktime checkdate hrtime DateTime DateTimeImmutable DateTimeZone new:k format
		getTimestamp getName uniqid random_int mt_rand rand lcg_value file_get_contents:f file:f file_exists:f is_file:f is_dir:f is_readable:f is_writable:f filesize:f filemtime:f
		fileperms:f md5_file:f sha1_file:f hash_file_ scandir:f glob:f realpath:f basename dirname pathinfo STDIN STDOUT STDERR fgets stream_get_contents is_null is_array is_string is_numeric
		isset empty gettype get_debug_type version_compare PHP_INT_MIN M_PI E_ALL error_reporting_ array list ReflectionExtension_ ReflectionFunction_ xdebug_info locale_get_default
		gethostbyname_ iptcparse_ getrusage getlastmod php_strip_whitespace:f parse_ini_file:f simplexml_load_file_ yaml_parse_file_ mb_strtoupper mb_strtolower mb_substr
		mb_check_encoding mb_detect_encoding iconv utf8_encode utf8_decode similar_text levenshtein soundex metaphone str_word_count ctype_digit ctype_alpha long2ip ip2long
		inet_pton filter_var FILTER_VALIDATE_EMAIL FILTER_VALIDATE_IP FILTER_VALIDATE_URL checkdnsrr_ posix_getuid posix_uname posix_getpid posix_times posix_getrlimit`)

	luaNames = words(`print _VERSION jit version os_ arch string format upper lower len sub_ rep:n reverse byte char find match gsub_ math pi floor ceil sqrt max min abs huge
		maxinteger mininteger os date time clock difftime getenv:e table concat unpack io write type tostring tonumber package path cpath config loaded_ collectgarbage
		and:k or:k not:k true false nil local for:k in:k do:k end:k ipairs pairs select if:k then:k else:k return:k`)

	rNames = words(`R version string major minor nickname platform language sessionInfo packageVersion packageDate packageDescription installed packages rownames colnames names nrow
		ncol dim length head tail summary str_ print cat paste paste0 sprintf format toupper tolower nchar substr strsplit gsub sub grepl regmatches trimws rev sort
		order unique table mean median sd var min max sum range_ quantile round sqrt exp log log2 log10 abs seq:n seq_len:n c t data frame vector matrix unlist is na
		na_ as numeric character integer logical factor date Date Sys time info getpid getenv:e getlocale timezone libPaths lib R_home_ home maintainer_ citation
		capabilities extSoftVersion La_library La_version BLAS Cstack_info gc object size search loadedNamespaces nlevels levels getRversion utils base tools stats
		methods compareVersion machine double eps Machine OlsonNames l10n_info icuGetCollate TRUE FALSE NULL NA Inf T F pi LETTERS letters month name abb read csv:f
		csv2:f delim:f table:f readLines:f basename dirname normalizePath getwd list_ nchar which any all ifelse in:k for:k if:k else:k
		Recall_ invisible header sep stringsAsFactors row column Package Version Priority`)

	juliaNames = words(`VERSION println print show versioninfo using:k import:k InteractiveUtils Sys CPU_NAME CPU_THREADS MACHINE ARCH KERNEL WORD_SIZE BINDIR total_memory free_memory
		cpu_info loadavg uptime islinux Threads nthreads Base libllvm_version julia_version JULIA_VERSION pwd homedir gethostname sqrt sum prod maximum minimum mean
		median std length first last sort reverse unique collect:n map filter join split uppercase lowercase string parse Int Int64 Float64 typemax typemin big BigInt
		factorial_ gcd lcm pi exp log log2 log10 abs round floor ceil mod div rem isprime DEPOT_PATH LOAD_PATH Pkg status dependencies project Dates now today
		Date DateTime year month day LinearAlgebra BLAS get_num_threads get_config vendor Statistics Printf Random rand zeros_ ones_ true false nothing typeof
		sizeof isfile:f isdir:f filesize:f readdir:f countlines:f active_project pkgversion pkgdir verbose`)
	juliaLibraries = words(`InteractiveUtils Pkg Dates LinearAlgebra Statistics Printf Random Base Sys Libdl`)

	elixirNames = words(`IO puts inspect System version otp_release build_info halt stop erlang system_info otp_release_ system_architecture schedulers schedulers_online emu_flavor wordsize
		process_limit version_ Enum map filter sum count max min sort uniq join each reduce_ into_ String upcase downcase length split trim reverse capitalize
		Integer to_string parse digits Float round ceil floor DateTime utc_now to_iso8601 Date utc_today NaiveDateTime Time Kernel fn_ end_ do_ true false nil
		Application spec_ loaded_applications started_applications vsn Version compare match Base encode64 decode64 encode16 URI encode decode encode_www_form
		limit infinity pretty to_charlist`)

	erlangNames = words(`io format fwrite erlang system_info otp_release system_version system_architecture schedulers schedulers_online version wordsize process_limit emu_type halt init
		stop application which_applications loaded_applications lists sort reverse sum seq_ length code root_dir lib_dir string uppercase lowercase now memory statistics runtime
		wall_clock os type date time localtime universaltime node ok true false`)
)

var (
	plainMarks = "()[]{},.:;+-*/%<>=!|&?~^"

	pythonLanguage     = &Language{names: pythonNames, libraries: pythonLibraries, usual: true, prefixes: "rbr ub", comment: '#', marks: plainMarks, never: []string{"__class__", "__import__"}, apart: pythonApart}
	javascriptLanguage = &Language{names: javascriptNames, libraries: javascriptLibraries, usual: true, marks: plainMarks, never: []string{"//", "/*", "constructor", "__proto__", "<!--"}, slashes: true}
	perlLanguage       = &Language{names: perlNames, libraries: noWords, marks: plainMarks + "@\\", never: []string{"<<", "__END__", "__DATA__", "ARGV"}, sigils: "$@%", slashes: true, held: "$", perl: true}
	rubyLanguage       = &Language{names: rubyNames, libraries: rubyLibraries, usual: true, marks: "()[]{},.:;+-*/<>=!|&?", never: []string{"<<", "%", "instance_eval", "=begin"}, sigils: "$", slashes: true, held: "#{"}
	phpLanguage        = &Language{names: phpNames, libraries: noWords, marks: plainMarks + "@", never: []string{"//", "/*", "<<", "?>", "$$"}, sigils: "$", held: "$"}
	luaLanguage        = &Language{names: luaNames, libraries: noWords, usual: true, marks: plainMarks, never: []string{"--", "[[", "[="}}
	rLanguage          = &Language{names: rNames, libraries: noWords, usual: true, comment: '#', marks: plainMarks + "$", never: []string{"%", "file"}}
	juliaLanguage      = &Language{names: juliaNames, libraries: juliaLibraries, marks: plainMarks, never: []string{".("}, held: "$"}
	elixirLanguage     = &Language{names: elixirNames, libraries: noWords, usual: true, marks: "()[]{},.:;+-*/<>=!|%", held: "#{"}
	erlangLanguage     = &Language{names: erlangNames, libraries: noWords, marks: "()[]{},.:;+-*/<>=!|", never: []string{"'"}}

	pythonApart = lazy(`(?s)\bos\b.*\b(?:system|replace|copy)\b|\b(?:system|replace|copy)\b.*\bos\b|\bshutil\b.*\bcopy\b|\bcopy\b.*\bshutil\b|\bpath\b.*\b(?:append|extend|insert)\b`)

	noWords = words()
)
