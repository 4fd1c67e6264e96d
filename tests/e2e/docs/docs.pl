#!/usr/bin/perl
# docs: what the documents say can be followed. Prints a line for each fault; exit code 1 if there is one.
#
#   - a link to a file or a heading of this repository leads there;
#   - a command in a code block is one that the programs have, with flags that its help has;
#   - the table "Coming from another tool" of README names what the programs answer to these words;
#   - the messages in docs/troubleshooting.md are in the sources;
#   - README is short enough to be read: at most 9 KiB.
use strict;
use warnings;
use File::Find;

my ($source, $bin) = @ARGV;
chdir $source or die "docs: no folder $source: $!\n";
my $faults = 0;
sub fault { print @_, "\n"; $faults++; }
sub slurp { open my $f, '<', $_[0] or die "docs: $_[0]: $!\n"; local $/; return scalar <$f>; }

my @files = (glob('*.md'), glob('*/*.md'), glob('docs/*/*.md'), glob('kernels/*/*.md'), glob('recipes/*/*.md'));
@files = grep { !m{^(tests|build)} } @files;
my %text = map { $_ => slurp($_) } @files;

# ---- links ----

# The name of a heading's anchor, as GitHub makes it.
sub anchor {
    my $name = lc $_[0];
    $name =~ s/`//g;
    $name =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
    $name =~ s/[^\w\- ]//g;
    $name =~ s/ /-/g;
    return $name;
}
my %anchors;
for my $file (@files) {
    my $fence = 0;
    for (split /\n/, $text{$file}) {
        $fence = !$fence if /^```/;
        $anchors{$file}{anchor($1)} = 1 if !$fence && /^#+ (.*?) *$/;
    }
}
for my $file (@files) {
    my ($folder) = $file =~ m{^(.*/)};
    my ($fence, $number) = (0, 0);
    for (split /\n/, $text{$file}) {
        $number++;
        $fence = !$fence if /^```/;
        next if $fence;
        (my $line = $_) =~ s/`[^`]*`//g;
        while ($line =~ /\]\(([^)\s]+)\)/g) {
            my ($path, $heading) = split /#/, $1, 2;
            next if $path =~ m{^(https?|mailto):};
            my $target = $path eq '' ? $file : ($folder // '') . $path;
            1 while $target =~ s{(^|/)[^/]+/\.\./}{$1};
            $target =~ s{^\./|/\.(?=/)}{}g;
            $target =~ s{/$}{};
            if (!-e $target) { fault("$file:$number: there is no $target"); }
            elsif (defined $heading && $anchors{$target} && !$anchors{$target}{$heading}) {
                fault("$file:$number: $target has no heading #$heading");
            }
        }
    }
}

# ---- commands ----

my %help;
sub help { # of a program, or of a command of heddle
    my ($program, $command) = @_;
    my $words = join ' ', grep { defined } $program, $command;
    $help{$words} //= do {
        my $text = `$bin/$words --help 2>&1`;
        $? == 0 ? $text : '';
    };
    return $help{$words};
}
my $shared = help('heddle');
my %programs = map { $_ => 1 } qw(heddle heddle-controller heddled);

sub check_command {
    my ($place, @words) = @_;
    my $program = shift @words;
    my $command;

    if ($program eq 'heddle') {
        $command = shift @words // return;
        return if $command =~ /^(--?\w|\.\.\.|COMMAND|help$)/;
        $command .= ' ' . shift @words
            if @words && $words[0] =~ /^[a-z-]+$/ && $command =~ /^(job|node|queue|token|checkpoint)$/
            && help('heddle', "$command $words[0]") && help('heddle', "$command $words[0]") ne help('heddle', $command);
    }
    my $help = help($program, $command);
    if (!$help) { fault("$place: there is no $program " . ($command // '')); return; }
    for (@words) {
        next unless /^(--[a-z][a-z-]*)/;
        my $flag = $1;
        fault("$place: $program " . ($command // '') . " has no $flag")
            unless "$help $shared" =~ /\Q$flag\E(?![a-z-])/ || $flag eq '--help';
    }
}

for my $file (@files) {
    next if $file =~ m{^docs/decisions/|^CHANGELOG};
    my ($fence, $number, $long) = ('', 0, '');
    for (split /\n/, $text{$file}) {
        $number++;
        if (/^\s*```(\w*)/) { $fence = $fence ? '' : $1 || 'text'; next; }
        next unless $fence && $fence ne 'yaml' && $fence ne 'c';
        my $line = $long . $_;
        if ($line =~ s/\\$//) { $long = $line; next; }
        $long = '';
        $line =~ s/^\s*[\$#>] //;
        $line =~ s/(^|\s)#.*//;         # a comment
        fault("$file:$number: the server refuses a body without Content-Type")
            if $line =~ /^curl .*chat/ && $line !~ /Content-Type: application\/json/;
        $line =~ s/'[^']*'|"[^"]*"/Q/g; # quoted words hold no flags
        for my $part (split /\|\||&&|[;|&(]/, $line) {
            my @words = split ' ', $part;
            shift @words while @words && $words[0] =~ /^(sudo|exec|time|env|if|then|do|!|nohup|[A-Z_]+=\S*)$/;
            splice @words, 0, 4 if @words > 4 && $words[0] eq 'runuser'; # -u USER --
            $words[0] =~ s{^.*/}{} if @words;
            check_command("$file:$number", @words) if @words && $programs{$words[0]};
        }
    }
}

# ---- messages ----

my ($sources, $messages) = ('', 0);
find(sub { $sources .= slurp($_) if /\.c$/ }, 'lib', 'controller', 'daemon');
for (split /\n/, $text{'docs/troubleshooting.md'}) {
    next unless /^\| (`.*?) \|/;
    for my $message ($1 =~ /`([^`]+)`/g) {
        $messages++;
        fault("docs/troubleshooting.md: no source has the message '$message'")
            if index($sources, $message) < 0;
    }
}
fault('docs/troubleshooting.md has no table of messages') if $messages < 8;

# ---- README ----

fault('README.md has ' . length($text{'README.md'}) . ' bytes; at most 9216 are read')
    if length $text{'README.md'} > 9216;
my $rows_of_families = () = slurp('lib/job/families.def') =~ /^F\(/mg;
fault("README.md: families.def has $rows_of_families families")
    unless $text{'README.md'} =~ /\[$rows_of_families families\]/;
my ($table) = $text{'README.md'} =~ /## Coming from another tool\n(.*?)\n## /s;
my $rows = 0;
for (split /\n/, $table // '') {
    my (undef, $theirs, $here) = split /\|/;
    next unless defined $here && $theirs =~ /`/;
    while ($theirs =~ /`([^`]+)`/g) {
        (my $word = $1) =~ s/:.*//; # a key with a value
        $word =~ s/^axolotl //;
        my $answer = `$bin/heddle keys $word 2>&1`;
        $answer = `$bin/heddle $word 2>&1` if $answer =~ /lists all/;
        my $named = grep { my $ours = $_; $ours =~ s/:.*//; $ours =~ s/^(heddle \S+).*/$1/; index($answer, $ours) >= 0 }
            $here =~ /`([^`]+)`/g;
        fault("README.md: '$word': $here; but the answer is $answer") unless $named || $answer =~ /TensorBoard/;
        $rows++;
    }
}
fault('README.md has no table of words of other tools') if $rows < 15;
exit($faults ? 1 : 0);
